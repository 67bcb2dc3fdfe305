//! One entry of the journal: a record with everything that the database is to have of it.
//!
//! ```text
//! generation  8   number  8   length  4   SHA-256 of these and the content  32   content
//! ```
//!
//! Numbers are little-endian; a text is its length (4) and its bytes. Whatever does not check out
//! ends the reading: it was never answered for.

use warrant_protocol::{Digest, RunId, RunState, Timestamp};

use crate::store::{Entry, EventRow, NewRecord, NewRun, Sealing};

/// What the content begins with.
const VERSION: u64 = 1;

const HEAD: usize = 8 + 8 + 4;
const DIGEST: usize = 32;

/// A record that was made and told.
#[derive(Debug, Clone)]
pub(in crate::store) struct KeptRecord {
    /// Its place in the journal.
    pub(in crate::store) number: u64,
    pub(in crate::store) session: String,
    pub(in crate::store) owner: String,
    /// Its place in the session.
    pub(in crate::store) lamport: u64,
    pub(in crate::store) record: NewRecord,
    /// The run that is kept with it, which is whole.
    pub(in crate::store) run: Option<NewRun>,
}

impl KeptRecord {
    /// Writes it at the end of `bytes`.
    pub(super) fn append_to(&self, bytes: &mut Vec<u8>, generation: u64) {
        let start = bytes.len();
        bytes.extend([0; HEAD + DIGEST]);
        let mut content = Content(bytes);
        content.number(VERSION);
        content.text(&self.session);
        content.text(&self.owner);
        content.number(self.lamport);
        content.record(&self.record);
        content.number(u64::from(self.run.is_some()));
        if let Some(run) = &self.run {
            content.run(run);
        }
        let length = bytes.len() - start - HEAD - DIGEST;
        let mut head = [0; HEAD];
        head[..8].copy_from_slice(&generation.to_le_bytes());
        head[8..16].copy_from_slice(&self.number.to_le_bytes());
        head[16..].copy_from_slice(&u32::try_from(length).unwrap_or(u32::MAX).to_le_bytes());
        let Some((_, entry)) = bytes.split_at_mut_checked(start) else { return };
        let Some((front, content)) = entry.split_at_mut_checked(HEAD + DIGEST) else { return };
        let digest = digest(&head, content);
        let (place, rest) = front.split_at_mut(HEAD);
        place.copy_from_slice(&head);
        rest.copy_from_slice(digest.as_bytes());
    }
}

fn digest(head: &[u8], content: &[u8]) -> Digest {
    // The content's digest first, so that nothing has to be copied.
    let content = Digest::of(content);
    Digest::of(&[head, content.as_bytes()].concat())
}

/// An entry as it was found, checked.
pub(super) struct Found<'a> {
    pub(super) generation: u64,
    pub(super) number: u64,
    content: &'a [u8],
}

/// Returns the entry at the beginning of `bytes`, if there is one that is whole, and what is
/// behind it.
pub(super) fn next(bytes: &[u8]) -> Option<(Found<'_>, &[u8])> {
    let (head, rest) = bytes.split_at_checked(HEAD)?;
    let (known, rest) = rest.split_at_checked(DIGEST)?;
    let mut reader = Reader(head);
    let (generation, number) = (reader.number()?, reader.number()?);
    let length = u32::from_le_bytes(reader.0.try_into().ok()?);
    let (content, rest) = rest.split_at_checked(usize::try_from(length).ok()?)?;
    let is_whole = digest(head, content).as_bytes() == known;
    is_whole.then_some((Found { generation, number, content }, rest))
}

impl Found<'_> {
    /// Returns the record; nothing when another version wrote it.
    pub(super) fn record(&self) -> Option<KeptRecord> {
        let mut reader = Reader(self.content);
        if reader.number()? != VERSION {
            return None;
        }
        let (session, owner, lamport) = (reader.text()?, reader.text()?, reader.number()?);
        let record = reader.record()?;
        let run = match reader.number()? {
            0 => None,
            _ => Some(reader.run()?),
        };
        let is_all = reader.0.is_empty();
        let kept = KeptRecord { number: self.number, session, owner, lamport, record, run };
        is_all.then_some(kept)
    }
}

struct Content<'a>(&'a mut Vec<u8>);

impl Content<'_> {
    fn number(&mut self, number: u64) {
        self.0.extend(number.to_le_bytes());
    }

    fn text(&mut self, text: &str) {
        self.0.extend(u32::try_from(text.len()).unwrap_or(u32::MAX).to_le_bytes());
        self.0.extend(text.as_bytes());
    }

    fn perhaps(&mut self, text: Option<&str>) {
        self.number(u64::from(text.is_some()));
        self.text(text.unwrap_or_default());
    }

    fn digest(&mut self, digest: &Digest) {
        self.0.extend(digest.as_bytes());
    }

    fn record(&mut self, record: &NewRecord) {
        let NewRecord { run, body, hash, signature, at } = record;
        self.text(run.as_str());
        self.text(body);
        self.digest(hash);
        self.text(signature);
        self.number(at.unix_ms());
    }

    fn run(&mut self, run: &NewRun) {
        self.text(run.id.as_str());
        self.text(&run.pool);
        self.text(&run.agent_kind);
        self.perhaps(run.isolation.as_deref());
        self.text(&run.prompt);
        self.text(&run.requested_by);
        self.digest(&run.request_hash);
        self.digest(&run.policy_hash);
        self.text(&run.judgment);
        self.text(&run.request);
        self.number(run.created_at.unix_ms());
        self.perhaps(run.idempotency_key.as_deref());
        self.number(i64::from(run.priority).cast_unsigned());
        self.number(u64::from(run.is_local));
        // Others are not put into the journal.
        if let Entry::Sealed(sealing) = &run.entry {
            self.sealing(sealing);
        }
    }

    fn sealing(&mut self, sealing: &Sealing) {
        self.text(sealing.state.as_str());
        self.perhaps(sealing.contract.as_deref());
        self.number(sealing.events.len() as u64);
        for EventRow { seq, ts, hash, body } in &sealing.events {
            self.number(*seq);
            self.number(ts.unix_ms());
            self.digest(hash);
            self.text(body);
        }
        self.digest(&sealing.receipt_hash);
        self.text(&sealing.receipt);
        self.number(sealing.at.unix_ms());
    }
}

/// Reads in the order of [`Content`].
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn bytes(&mut self, length: usize) -> Option<&[u8]> {
        let (bytes, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(bytes)
    }

    fn number(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.bytes(8)?.try_into().ok()?))
    }

    fn text(&mut self) -> Option<String> {
        let length = u32::from_le_bytes(self.bytes(4)?.try_into().ok()?);
        let bytes = self.bytes(usize::try_from(length).ok()?)?;
        String::from_utf8(bytes.to_vec()).ok()
    }

    fn perhaps(&mut self) -> Option<Option<String>> {
        let (is_some, text) = (self.number()? == 1, self.text()?);
        Some(is_some.then_some(text))
    }

    fn digest(&mut self) -> Option<Digest> {
        Some(Digest::from_bytes(self.bytes(DIGEST)?.try_into().ok()?))
    }

    fn time(&mut self) -> Option<Timestamp> {
        Timestamp::from_unix_ms(self.number()?).ok()
    }

    fn run_id(&mut self) -> Option<RunId> {
        self.text()?.parse().ok()
    }

    fn record(&mut self) -> Option<NewRecord> {
        Some(NewRecord {
            run: self.run_id()?,
            body: self.text()?,
            hash: self.digest()?,
            signature: self.text()?,
            at: self.time()?,
        })
    }

    fn run(&mut self) -> Option<NewRun> {
        Some(NewRun {
            id: self.run_id()?,
            pool: self.text()?,
            agent_kind: self.text()?,
            isolation: self.perhaps()?,
            prompt: self.text()?,
            requested_by: self.text()?,
            request_hash: self.digest()?,
            policy_hash: self.digest()?,
            judgment: self.text()?,
            request: self.text()?,
            created_at: self.time()?,
            idempotency_key: self.perhaps()?,
            priority: i32::try_from(self.number()?.cast_signed()).ok()?,
            is_local: self.number()? == 1,
            entry: Entry::Sealed(self.sealing()?),
        })
    }

    fn sealing(&mut self) -> Option<Sealing> {
        let state = self.text()?;
        let state = RunState::parse(&state)?;
        let contract = self.perhaps()?;
        let mut events = Vec::new();
        for _ in 0..self.number()? {
            events.push(EventRow {
                seq: self.number()?,
                ts: self.time()?,
                hash: self.digest()?,
                body: self.text()?,
            });
        }
        let (receipt_hash, receipt, at) = (self.digest()?, self.text()?, self.time()?);
        Some(Sealing { state, contract, events, receipt_hash, receipt, at })
    }
}

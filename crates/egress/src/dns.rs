//! DNS messages, as much as a stub needs: one question in, addresses out.
//!
//! Owns no socket. Whatever is not one plain question of class IN is refused by its caller.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::host::{HostName, InvalidHost, sanitize};

/// Record type of an IPv4 address.
pub(crate) const A: u16 = 1;
/// Record type of an IPv6 address.
pub(crate) const AAAA: u16 = 28;
const CLASS_IN: u16 = 1;
const HEADER: usize = 12;

/// The answer codes used here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Code {
    NoError = 0,
    FormatError = 1,
    ServerFailure = 2,
    NameError = 3,
    NotImplemented = 4,
    Refused = 5,
}

/// One question.
#[derive(Debug, PartialEq, Eq)]
pub struct Query {
    pub(crate) id: u16,
    pub(crate) recursion_desired: bool,
    /// The question section as it was asked, to be echoed.
    pub(crate) question: Vec<u8>,
    pub(crate) name: Result<HostName, InvalidHost>,
    /// The name in a form fit for the record.
    pub(crate) shown: String,
    pub(crate) kind: u16,
    pub(crate) is_internet: bool,
}

/// A message that is not a query with one question; the id, if one could be read.
#[derive(Debug, PartialEq, Eq)]
pub struct NotAQuery(pub(crate) Option<u16>);

/// What an upstream server answered.
#[derive(Debug, PartialEq, Eq)]
pub struct Answers {
    pub(crate) addresses: Vec<IpAddr>,
    pub(crate) is_truncated: bool,
    pub(crate) code: u8,
}

/// Parses a query.
///
/// # Errors
/// When the message is not a standard query with exactly one question.
pub fn parse_query(message: &[u8]) -> Result<Query, NotAQuery> {
    let mut reader = Reader { message, at: 0 };
    let id = reader.u16().ok_or(NotAQuery(None))?;
    let bad = || NotAQuery(Some(id));
    let flags = reader.u16().ok_or_else(bad)?;
    let questions = reader.u16().ok_or_else(bad)?;
    reader.skip(6).ok_or_else(bad)?;
    let is_standard_query = flags & 0xf800 == 0;
    if !is_standard_query || questions != 1 {
        return Err(bad());
    }
    let labels = reader.plain_name().ok_or_else(bad)?;
    let kind = reader.u16().ok_or_else(bad)?;
    let class = reader.u16().ok_or_else(bad)?;
    let question = message.get(HEADER..reader.at).ok_or_else(bad)?.to_vec();
    let name = match std::str::from_utf8(&labels) {
        Ok(text) => HostName::from_wire(text),
        Err(_) => Err(InvalidHost::Character),
    };
    Ok(Query {
        id,
        recursion_desired: flags & 0x0100 != 0,
        question,
        name,
        shown: sanitize(&labels),
        kind,
        is_internet: class == CLASS_IN,
    })
}

/// Builds the reply to a query, with at most one address.
pub(crate) fn reply(query: &Query, code: Code, address: Option<IpAddr>) -> Vec<u8> {
    let mut message = Vec::with_capacity(HEADER + query.question.len() + 28);
    let rd = if query.recursion_desired { 0x0100 } else { 0 };
    let flags = 0x8080 | rd | code as u16;
    push(&mut message, &[query.id, flags, 1, u16::from(address.is_some()), 0, 0]);
    message.extend_from_slice(&query.question);
    if let Some(address) = address {
        // A pointer to the name in the question; an hour to live, since the answer never changes.
        push(&mut message, &[0xc00c, query.kind, CLASS_IN, 0, 3600]);
        match address {
            IpAddr::V4(address) => {
                push(&mut message, &[4]);
                message.extend_from_slice(&address.octets());
            }
            IpAddr::V6(address) => {
                push(&mut message, &[16]);
                message.extend_from_slice(&address.octets());
            }
        }
    }
    message
}

/// Builds the reply to something that is not a query.
pub(crate) fn reply_error(id: u16, code: Code) -> Vec<u8> {
    let mut message = Vec::with_capacity(HEADER);
    push(&mut message, &[id, 0x8080 | code as u16, 0, 0, 0, 0]);
    message
}

/// Builds a question to an upstream server.
pub(crate) fn question(id: u16, name: &HostName, kind: u16) -> Vec<u8> {
    let mut message = Vec::with_capacity(HEADER + name.as_str().len() + 6);
    push(&mut message, &[id, 0x0100, 1, 0, 0, 0]);
    for label in name.as_str().split('.') {
        // A label of a canonical name has at most 63 bytes.
        message.push(u8::try_from(label.len()).unwrap_or(0));
        message.extend_from_slice(label.as_bytes());
    }
    message.push(0);
    push(&mut message, &[kind, CLASS_IN]);
    message
}

/// Reads the answer to a question; nothing when the message does not answer that question.
#[must_use]
pub fn answers(question: &[u8], message: &[u8]) -> Option<Answers> {
    let mut reader = Reader { message, at: 0 };
    let mut asked = Reader { message: question, at: 0 };
    if reader.u16()? != asked.u16()? {
        return None;
    }
    let flags = reader.u16()?;
    let counts = [reader.u16()?, reader.u16()?];
    reader.skip(4)?;
    let echoed = question.get(HEADER..)?;
    let found = message.get(HEADER..HEADER.checked_add(echoed.len())?)?;
    if flags & 0x8000 == 0 || counts.first() != Some(&1) || !found.eq_ignore_ascii_case(echoed) {
        return None;
    }
    reader.skip(echoed.len())?;
    let mut addresses = Vec::new();
    for _ in 0..*counts.last()? {
        let Some(record) = reader.record() else { break };
        addresses.extend(record);
    }
    let code = (flags & 0x000f) as u8;
    Some(Answers { addresses, is_truncated: flags & 0x0200 != 0, code })
}

struct Reader<'a> {
    message: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn take(&mut self, count: usize) -> Option<&[u8]> {
        let end = self.at.checked_add(count)?;
        let bytes = self.message.get(self.at..end)?;
        self.at = end;
        Some(bytes)
    }

    fn skip(&mut self, count: usize) -> Option<()> {
        self.take(count).map(drop)
    }

    fn u8(&mut self) -> Option<u8> {
        self.take(1)?.first().copied()
    }

    fn u16(&mut self) -> Option<u16> {
        self.take(2)?.try_into().ok().map(u16::from_be_bytes)
    }

    /// Reads a name without compression as its labels joined by dots.
    fn plain_name(&mut self) -> Option<Vec<u8>> {
        let mut name = Vec::new();
        loop {
            let length = self.u8()?;
            if length == 0 {
                return Some(name);
            }
            if length > 63 || name.len() > 255 {
                return None;
            }
            if !name.is_empty() {
                name.push(b'.');
            }
            let label = self.take(usize::from(length))?;
            // SECURITY: a dot inside a label would turn one label into two.
            let label = label.iter().map(|b| if *b == b'.' { 0xff } else { *b });
            let label: Vec<u8> = label.collect();
            name.extend_from_slice(&label);
        }
    }

    /// Skips a name that may end in a pointer, which is never followed.
    fn skip_name(&mut self) -> Option<()> {
        loop {
            match self.u8()? {
                0 => return Some(()),
                length @ 1..=63 => self.skip(usize::from(length))?,
                192.. => return self.skip(1),
                _ => return None,
            }
        }
    }

    /// Reads one record: an address, or nothing for a record of another type.
    fn record(&mut self) -> Option<Option<IpAddr>> {
        self.skip_name()?;
        let kind = self.u16()?;
        let class = self.u16()?;
        self.skip(4)?;
        let length = self.u16()?;
        let value = self.take(usize::from(length))?;
        Some(match (kind, class) {
            (A, CLASS_IN) => <[u8; 4]>::try_from(value).ok().map(|v| Ipv4Addr::from(v).into()),
            (AAAA, CLASS_IN) => <[u8; 16]>::try_from(value).ok().map(|v| Ipv6Addr::from(v).into()),
            _ => None,
        })
    }
}

fn push(message: &mut Vec<u8>, words: &[u16]) {
    for word in words {
        message.extend_from_slice(&word.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_is_read_back_and_answered() {
        let name = HostName::from_wire("a.example").unwrap();
        let asked = question(7, &name, A);
        let query = parse_query(&asked).unwrap();
        assert_eq!(query.name, Ok(name));
        assert_eq!((query.id, query.kind, query.recursion_desired), (7, A, true));
        let address: IpAddr = "1.2.3.4".parse().unwrap();
        let answer = reply(&query, Code::NoError, Some(address));
        let found = answers(&asked, &answer).unwrap();
        assert_eq!(found, Answers { addresses: vec![address], is_truncated: false, code: 0 });
        assert_eq!(
            answers(&question(8, &HostName::from_wire("a.example").unwrap(), A), &answer),
            None
        );
        assert_eq!(
            answers(&question(7, &HostName::from_wire("b.example").unwrap(), A), &answer),
            None
        );
    }

    #[test]
    fn a_dot_inside_a_label_does_not_make_two() {
        let mut asked = vec![0, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        asked.extend_from_slice(b"\x09a.example\x00\x00\x01\x00\x01");
        assert!(parse_query(&asked).unwrap().name.is_err());
    }
}

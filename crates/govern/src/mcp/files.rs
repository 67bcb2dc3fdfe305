//! `read_file`, `write_file` and `list_files`: each is a program in the sandbox, so that masks,
//! gate, undo and receipt are those of every other run.

use std::sync::Arc;

use base64::Engine as _;
use serde_json::{Value, json};
use warrant_protocol::{Outcome, RelPath};

use super::answer::{Answer, facts, writes};
use super::arguments::{MOST_BYTES, Misuse};
use super::running::{Taken, encoded};
use super::{Call, Server};
use crate::file_errands::{read_errand, write_errand};
use crate::output::Capture;
use crate::workbench::{Errand, Work, Writes};

/// How much of a file is read when the call does not say.
const READ_BYTES: u64 = 64 * 1024;

/// How much of a listing is read; as facts it is four times as long.
const LISTING_BYTES: usize = 128 * 1024;

impl Server {
    pub(super) fn read_file(&self, mut call: Call) -> Result<Answer, Misuse> {
        let path = self.file(&mut call)?;
        let offset = call.arguments.number("offset", (0, u64::from(u32::MAX)))?.unwrap_or(0);
        let count = call.arguments.number("max_bytes", (1, MOST_BYTES))?.unwrap_or(READ_BYTES);
        let call = call.finish()?;
        // One byte more than asked for says whether there is more.
        let errand = read_errand(&path, offset, count + 1);
        let capture = Arc::new(Capture::beginning(usize::try_from(count).unwrap_or(usize::MAX)));
        let done = match self.step(&errand, &call, &capture) {
            Ok(done) => done,
            Err(answer) => return Ok(answer),
        };
        if done.ended.outcome != (Outcome::Exited { code: 0 }) {
            return Ok(not_done(&format!("{path} cannot be read"), &done, &capture));
        }
        let (stdout, _) = capture.excerpts();
        let piece = match stdout.is_whole() {
            true => stdout.head.as_slice(),
            false => whole_characters(&stdout.head),
        };
        let (encoding, content) = encoded(piece);
        let mut text = content.as_str().unwrap_or_default().to_owned();
        if encoding == "base64" {
            text = format!("[{} bytes that are no text, as base64]\n{text}", piece.len());
        }
        let next = offset.saturating_add(u64::try_from(piece.len()).unwrap_or(u64::MAX));
        let next = (!stdout.is_whole()).then_some(next);
        if let Some(next) = next {
            text.push_str(&format!("\n[there is more; read on with offset {next}]"));
        }
        let facts = facts(json!({
            "status": "completed",
            "runId": done.ended.run,
            "path": path,
            "encoding": encoding,
            "content": content,
            "hasMore": next.is_some(),
            "nextOffset": next,
        }));
        Ok(Answer::good(text, facts))
    }

    pub(super) fn write_file(&self, mut call: Call) -> Result<Answer, Misuse> {
        let path = self.file(&mut call)?;
        let content = call.arguments.needed("content")?;
        let call = call.finish()?;
        let errand = write_errand(self.bench.workspace(), &path, content.into_bytes());
        let capture = Arc::new(Capture::both_ends(4096));
        let done = match self.step(&errand, &call, &capture) {
            Ok(done) => done,
            Err(answer) => return Ok(answer),
        };
        if done.ended.outcome != (Outcome::Exited { code: 0 }) {
            return Ok(not_done(&format!("{path} cannot be written"), &done, &capture));
        }
        let (lines, workspace) = writes(&done.kept, &done.ended);
        let facts = facts(json!({
            "status": "completed",
            "runId": done.ended.run,
            "path": path,
            "bytes": errand.stdin.len(),
            "workspace": workspace,
        }));
        let text = match lines.as_slice() {
            [] => format!("{path} has that content already\n"),
            lines => format!("{}\n", lines.join("\n")),
        };
        let is_held = lines.iter().any(|line| line.starts_with("not kept"));
        Ok(if is_held { Answer::bad(text, facts) } else { Answer::good(text, facts) })
    }

    pub(super) fn list_files(&self, mut call: Call) -> Result<Answer, Misuse> {
        let path = call.arguments.path("path", self.bench.workspace())?;
        let depth = call.arguments.number("depth", (1, 64))?.unwrap_or(1);
        let call = call.finish()?;
        let start = path.map_or_else(|| ".".to_owned(), |path| format!("./{path}"));
        let depth = depth.to_string();
        let argv = ["find", &start, "-mindepth", "1", "-maxdepth", &depth, "-name", ".git"];
        let rest = ["-prune", "-o", "-printf", "%y %s %P\\0"];
        let argv = argv.iter().chain(&rest).map(|word| (*word).to_owned()).collect();
        let errand = Errand::new(Work::Argv(argv), Writes::Refused);
        let capture = Arc::new(Capture::beginning(LISTING_BYTES));
        let done = match self.step(&errand, &call, &capture) {
            Ok(done) => done,
            Err(answer) => return Ok(answer),
        };
        if done.ended.outcome != (Outcome::Exited { code: 0 }) {
            return Ok(not_done(&format!("{start} cannot be listed"), &done, &capture));
        }
        let (stdout, _) = capture.excerpts();
        let entries = entries(&stdout.head);
        let mut text: String = entries.iter().map(Entry::line).collect();
        if entries.is_empty() {
            text.push_str("no files\n");
        }
        if !stdout.is_whole() {
            text.push_str("[there are more; list a directory further down]\n");
        }
        let files: Vec<Value> = entries.iter().map(Entry::facts).collect();
        let facts = facts(json!({
            "status": "completed",
            "runId": done.ended.run,
            "files": files,
            "hasMore": !stdout.is_whole(),
        }));
        Ok(Answer::good(text, facts))
    }

    fn file(&self, call: &mut Call) -> Result<RelPath, Misuse> {
        let path = call.arguments.path("path", self.bench.workspace())?;
        path.ok_or_else(|| Misuse("`path` must name a file below the workspace".to_owned()))
    }
}

/// Returns bytes as base64.
pub(super) fn base64(bytes: &[u8]) -> String {
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

/// Returns a piece of text without a character that is cut at its end, so that the next piece
/// begins with it; bytes that are no text, or a single character too long to fit, as they are.
fn whole_characters(bytes: &[u8]) -> &[u8] {
    match std::str::from_utf8(bytes) {
        Err(error) if error.error_len().is_none() && error.valid_up_to() > 0 => {
            bytes.get(..error.valid_up_to()).unwrap_or(bytes)
        }
        _ => bytes,
    }
}

/// Returns a text on one line, with escapes for what a terminal obeys or does not show.
// SECURITY: a name may hold anything; it must neither make another line nor look like another name.
pub(super) fn printable(text: &str) -> String {
    let is_hidden = |c: char| {
        c.is_control()
            || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}')
            || matches!(c, '\u{2060}'..='\u{206f}' | '\u{feff}')
    };
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match is_hidden(c) {
            true => shown.extend(c.escape_unicode()),
            false => shown.push(c),
        }
    }
    shown
}

fn not_done(what: &str, done: &Taken, capture: &Capture) -> Answer {
    let (_, stderr) = capture.excerpts();
    let told = if stderr.head.is_empty() { done.ended.message.clone() } else { stderr.text() };
    let facts = facts(json!({
        "status": done.ended.receipt.body().status.as_str(),
        "runId": done.ended.run,
        "problem": told,
    }));
    Answer::bad(format!("{what}: {}\nreceipt: {}\n", told.trim_end(), done.ended.run), facts)
}

/// One line of a listing.
#[derive(Debug, PartialEq, Eq)]
struct Entry {
    path: String,
    kind: &'static str,
    size: u64,
}

impl Entry {
    fn line(&self) -> String {
        let path = printable(&self.path);
        match self.kind {
            "directory" => format!("{path}/\n"),
            "file" => format!("{path} ({} bytes)\n", self.size),
            kind => format!("{path} ({kind})\n"),
        }
    }

    fn facts(&self) -> Value {
        json!({"path": self.path, "kind": self.kind, "bytes": self.size})
    }
}

/// Reads what `find` printed; a last entry that was cut off is left out.
fn entries(bytes: &[u8]) -> Vec<Entry> {
    let whole = bytes.iter().rposition(|byte| *byte == 0).map_or(0, |end| end);
    let mut entries: Vec<Entry> = bytes
        .get(..whole)
        .unwrap_or_default()
        .split(|byte| *byte == 0)
        .filter_map(|line| {
            let line = String::from_utf8_lossy(line);
            let mut words = line.splitn(3, ' ');
            let kind = match words.next()? {
                "f" => "file",
                "d" => "directory",
                "l" => "link",
                _ => "special",
            };
            let size = words.next()?.parse().ok()?;
            Some(Entry { kind, size, path: words.next()?.to_owned() })
        })
        .collect();
    entries.sort_by(|one, other| one.path.cmp(&other.path));
    entries
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piece_of_text_ends_between_characters() {
        let check = |bytes: &[u8], expected: &[u8]| assert_eq!(whole_characters(bytes), expected);
        check("a\u{fc}".as_bytes(), "a\u{fc}".as_bytes());
        check(b"a\xc3", b"a");
        check(b"\xe2\x82", b"\xe2\x82");
        check(b"a\xff\xc3", b"a\xff\xc3");
    }

    #[test]
    fn a_listing_is_sorted_and_a_cut_entry_is_left_out() {
        let found = entries(b"d 40 b\0f 3 a b\0l 1 c\0f 12 cut");
        let entry = |path: &str, kind, size| Entry { path: path.to_owned(), kind, size };
        assert_eq!(
            found,
            [entry("a b", "file", 3), entry("b", "directory", 40), entry("c", "link", 1)]
        );
        assert_eq!(
            found.iter().map(Entry::line).collect::<String>(),
            "a b (3 bytes)\nb/\nc (link)\n"
        );
        let named = entry("a\nb/ (forged)\u{1b}[2J\u{202e}", "file", 1).line();
        assert_eq!(named, "a\\u{a}b/ (forged)\\u{1b}[2J\\u{202e} (1 bytes)\n");
        assert!(entries(b"").is_empty());
        assert!(entries(b"f 12 cut").is_empty());
    }
}

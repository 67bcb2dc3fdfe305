//! The only place that prints. Data goes to stdout, everything else to stderr.
//!
//! Color appears only on a terminal and never with `NO_COLOR`. A reader that went away is not an
//! error: the person saw what they wanted. A full disk is one: what was asked for did not arrive.

use std::io::{self, IsTerminal, Write};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;

use crate::terminal::is_unsafe;

/// Whether data for stdout went nowhere.
static LOST: OnceLock<io::Error> = OnceLock::new();

/// Whether the last line on stderr is a program's and has no end yet.
static IS_LINE_OPEN: AtomicBool = AtomicBool::new(false);

/// Whether stdout and stderr are both terminals.
static ARE_TERMINALS: OnceLock<bool> = OnceLock::new();

/// Writes data to stdout.
pub(crate) fn data(text: &str) {
    note_loss(write(&mut io::stdout().lock(), text.as_bytes()));
}

/// Takes how writing to stdout ended.
pub(crate) fn note_loss(written: io::Result<()>) {
    if let Err(error) = written
        && error.kind() != io::ErrorKind::BrokenPipe
    {
        let _ = LOST.set(error);
    }
}

/// Returns why data for stdout went nowhere, if it did.
pub(crate) fn lost() -> Option<&'static io::Error> {
    LOST.get()
}

/// Writes one JSON object and a newline to stdout.
pub(crate) fn json(value: &Value) {
    let mut text = value.to_string();
    text.push('\n');
    data(&text);
}

/// Writes a line for the person to stderr; a line that a program left open there is ended first.
pub(crate) fn note(line: &str) {
    let start = if IS_LINE_OPEN.swap(false, Ordering::Relaxed) { "\n" } else { "" };
    emit(&mut io::stderr().lock(), &format!("{start}{line}\n"));
}

/// Passes on what a program wrote to stdout, untouched.
pub(crate) fn pass_stdout(bytes: &[u8]) -> io::Result<()> {
    let written = write(&mut io::stdout().lock(), bytes);
    // Only a person sees both streams in one place.
    if IS_LINE_OPEN.load(Ordering::Relaxed) || !bytes.ends_with(b"\n") {
        let both = || io::stdout().is_terminal() && io::stderr().is_terminal();
        if *ARE_TERMINALS.get_or_init(both) {
            note_line(bytes);
        }
    }
    written
}

/// Passes on what a program wrote to stderr, untouched.
pub(crate) fn pass_stderr(bytes: &[u8]) -> io::Result<()> {
    note_line(bytes);
    write(&mut io::stderr().lock(), bytes)
}

fn note_line(bytes: &[u8]) {
    if let Some(last) = bytes.last() {
        IS_LINE_OPEN.store(*last != b'\n', Ordering::Relaxed);
    }
}

/// Writes a question to stderr; the answer comes on the same line.
pub(crate) fn prompt(text: &str) {
    emit(&mut io::stderr().lock(), text);
}

/// Writes an error with its causes to stderr, once, on one line.
pub(crate) fn error(error: &anyhow::Error) {
    note(&format!("{} {error:#}", paint("error:", Tone::Bad, io::stderr().is_terminal())));
}

fn emit(stream: &mut impl Write, text: &str) {
    // A closed pipe ends the conversation, and nothing of ours depends on the text arriving.
    let _ = write(stream, text.as_bytes());
}

fn write(stream: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    stream.write_all(bytes).and_then(|()| stream.flush())
}

/// Returns text that came from elsewhere as one line that cannot drive a terminal.
pub(crate) fn printable(text: &str) -> String {
    text.chars()
        .flat_map(|c| if is_unsafe(c) { c.escape_default().collect() } else { vec![c] })
        .collect()
}

/// What a word on a terminal wants to say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tone {
    /// It holds.
    Good,
    /// It does not.
    Bad,
    /// Less important.
    Quiet,
}

/// Returns whether stdout may be colored.
pub(crate) fn stdout_has_color() -> bool {
    io::stdout().is_terminal()
}

/// Returns the text in its tone when `on_terminal`, and unchanged otherwise.
pub(crate) fn paint(text: &str, tone: Tone, on_terminal: bool) -> String {
    if !on_terminal || std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty()) {
        return text.to_owned();
    }
    let code = match tone {
        Tone::Good => "32",
        Tone::Bad => "31",
        Tone::Quiet => "2",
    };
    format!("\x1b[{code}m{text}\x1b[0m")
}

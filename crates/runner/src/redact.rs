//! Takes secret values out of bytes before anything is stored or shown.
//!
//! Owns the patterns a value can appear as and the streaming removal of them; it is binary-safe:
//! a byte outside a match is passed on as it came. It never decides which secrets a run has.
//! Start at [`Redactor`]; [`RedactStream`] is the same for bytes that arrive in pieces.
//!
//! Rules of length: a value of one to three bytes is removed in its literal form only, because
//! its encodings would match nearly everything; an empty value is nothing and is not removed.
//! A value with several lines is also removed line by line (lines from eight bytes on), because
//! a diff puts its own marks between them; shorter lines are removed where all of them stand
//! below each other.
//! Of a stream that was cut off, an end that may be the beginning of a value is removed as well.
//!
//! What it cannot stop: a program that encodes a value in a way not listed at `forms`, or
//! spreads it over several places. Redaction prevents accidents; the network rules prevent theft.

mod forms;

use std::borrow::Cow;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use aho_corasick::{AhoCorasick, AhoCorasickKind, BuildError, MatchKind};
use thiserror::Error;
use warrant_protocol::port::SecretValue;

/// The beginning of a secret that was cut off is removed from this many bytes on.
const SHORTEST_BEGUN: usize = 4;

/// The patterns could not be built; nothing may be shown or stored without them.
#[derive(Debug, Error)]
#[error("the secrets of this run are too large to be recognised in its output")]
pub struct RedactorError(#[from] BuildError);

/// Removes the secrets of one run from bytes, in all the forms listed at `forms`.
#[derive(Clone)]
pub struct Redactor {
    patterns: Option<Arc<Patterns>>,
}

struct Patterns {
    exact: AhoCorasick,
    /// For hosts, which arrive in lower case whatever the program wrote.
    folded: AhoCorasick,
    /// The forms, by the index the automata report.
    forms: Vec<Vec<u8>>,
    /// Indices of `forms` by their first byte.
    by_first: Vec<Vec<usize>>,
    /// What each form is replaced by.
    replacements: Vec<Vec<u8>>,
}

impl fmt::Debug for Redactor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let forms = self.patterns.as_ref().map_or(0, |patterns| patterns.forms.len());
        write!(f, "Redactor({forms} forms)")
    }
}

impl Redactor {
    /// Returns a redactor for these secrets.
    ///
    /// # Errors
    /// A [`RedactorError`] when the values are too large together.
    pub fn new(secrets: &[SecretValue]) -> Result<Self, RedactorError> {
        let mut forms = Vec::new();
        let mut replacements = Vec::new();
        for secret in secrets {
            let placeholder = format!("[REDACTED:{}]", secret.name);
            for (form, replacement) in forms::of(&secret.value, &placeholder) {
                forms.push(form);
                replacements.push(replacement);
            }
        }
        if forms.is_empty() {
            return Ok(Self::none());
        }
        let mut by_first = vec![Vec::new(); 256];
        for (index, form) in forms.iter().enumerate() {
            let bucket = form.first().and_then(|first| by_first.get_mut(usize::from(*first)));
            if let Some(bucket) = bucket {
                bucket.push(index);
            }
        }
        let mut builder = AhoCorasick::builder();
        builder.match_kind(MatchKind::Standard).kind(Some(AhoCorasickKind::ContiguousNFA));
        let exact = builder.build(&forms)?;
        let folded = builder.ascii_case_insensitive(true).build(&forms)?;
        let patterns = Patterns { exact, folded, forms, by_first, replacements };
        Ok(Self { patterns: Some(Arc::new(patterns)) })
    }

    /// Returns a redactor for a run without secrets; it changes nothing.
    #[must_use]
    pub const fn none() -> Self {
        Self { patterns: None }
    }

    /// Returns whether there is nothing to remove.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.patterns.is_none()
    }

    /// Returns whether `bytes` contain a form of a secret.
    #[must_use]
    pub fn finds(&self, bytes: &[u8]) -> bool {
        self.patterns.as_ref().is_some_and(|patterns| patterns.exact.is_match(bytes))
    }

    /// Returns a search for secrets in content that is shown piece by piece.
    #[must_use]
    pub fn search(&self) -> Search {
        Search { redactor: self.clone(), state: Mutex::default() }
    }

    /// Returns `bytes` without any form of a secret.
    #[must_use]
    pub fn redact<'a>(&self, bytes: &'a [u8]) -> Cow<'a, [u8]> {
        match &self.patterns {
            Some(patterns) if patterns.exact.is_match(bytes) => {
                Cow::Owned(patterns.replace(&patterns.exact, bytes))
            }
            _ => Cow::Borrowed(bytes),
        }
    }

    /// Returns `text` without any form of a secret: a file name, a message, an argument.
    #[must_use]
    pub fn redact_text(&self, text: &str) -> String {
        String::from_utf8_lossy(&self.redact(text.as_bytes())).into_owned()
    }

    /// Returns a host name without any form of a secret, whatever its case.
    #[must_use]
    pub fn redact_host(&self, host: &str) -> String {
        match &self.patterns {
            Some(patterns) => {
                let bytes = patterns.replace(&patterns.folded, host.as_bytes());
                String::from_utf8_lossy(&bytes).into_owned()
            }
            None => host.to_owned(),
        }
    }

    /// Returns a fresh stream through this redactor.
    #[must_use]
    pub fn stream(&self) -> RedactStream {
        RedactStream { redactor: self.clone(), held: Vec::new(), covered: 0 }
    }
}

/// A stretch of bytes to be removed, and the form that reached furthest in it.
struct Stretch {
    start: usize,
    end: usize,
    form: usize,
    length: usize,
}

impl Patterns {
    /// Returns the stretches to remove: matches that overlap are one stretch, named after the
    /// longest, so that no rest of a second secret stays behind.
    fn stretches(&self, automaton: &AhoCorasick, bytes: &[u8]) -> Vec<Stretch> {
        let mut found: Vec<Stretch> = automaton
            .find_overlapping_iter(bytes)
            .map(|hit| Stretch {
                start: hit.start(),
                end: hit.end(),
                form: hit.pattern().as_usize(),
                length: hit.len(),
            })
            .collect();
        found.sort_by_key(|stretch| stretch.start);
        let mut merged: Vec<Stretch> = Vec::new();
        for next in found {
            match merged.last_mut() {
                Some(last) if next.start < last.end => {
                    last.end = last.end.max(next.end);
                    if next.length > last.length {
                        last.form = next.form;
                        last.length = next.length;
                    }
                }
                _ => merged.push(next),
            }
        }
        merged
    }

    fn replace(&self, automaton: &AhoCorasick, bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(bytes.len());
        let mut at = 0;
        for stretch in self.stretches(automaton, bytes) {
            out.extend_from_slice(bytes.get(at..stretch.start).unwrap_or_default());
            out.extend_from_slice(self.replacement(stretch.form));
            at = stretch.end;
        }
        out.extend_from_slice(bytes.get(at..).unwrap_or_default());
        out
    }

    fn replacement(&self, form: usize) -> &[u8] {
        self.replacements.get(form).map_or(b"[REDACTED]", |text| text)
    }

    /// Returns where the longest tail of `bytes` starts that could still become a match.
    fn open_tail(&self, bytes: &[u8]) -> usize {
        let longest = self.exact.max_pattern_len().saturating_sub(1).min(bytes.len());
        let first_start = bytes.len() - longest;
        let tails = (first_start..bytes.len()).map(|start| (start, bytes.get(start..)));
        for (start, tail) in tails {
            let Some(tail) = tail else { continue };
            if self.begun_form(tail).is_some() {
                return start;
            }
        }
        bytes.len()
    }

    /// Returns a form that `tail` is the beginning of, and not the whole.
    fn begun_form(&self, tail: &[u8]) -> Option<usize> {
        let bucket = tail.first().and_then(|first| self.by_first.get(usize::from(*first)))?;
        let is_begun = |index: &usize| {
            let form = self.forms.get(*index);
            form.is_some_and(|form| form.len() > tail.len() && form.starts_with(tail))
        };
        bucket.iter().copied().find(is_begun)
    }
}

/// Looks for secrets in content that is shown piece by piece, and holds none of it.
#[derive(Debug)]
pub struct Search {
    redactor: Redactor,
    state: Mutex<Searched>,
}

#[derive(Debug, Default)]
struct Searched {
    /// The end of what was shown, in which a form may have begun.
    end: Vec<u8>,
    has_found: bool,
}

impl Search {
    /// Looks at the next piece.
    pub fn look_at(&self, bytes: &[u8]) {
        let Some(patterns) = &self.redactor.patterns else { return };
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.has_found {
            return;
        }
        state.end.extend_from_slice(bytes);
        state.has_found = patterns.exact.is_match(&state.end);
        let keep = patterns.exact.max_pattern_len().saturating_sub(1).min(state.end.len());
        let past = state.end.len() - keep;
        state.end.drain(..past);
    }

    /// Returns whether a form of a secret was in it.
    #[must_use]
    pub fn has_found(&self) -> bool {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).has_found
    }
}

/// Redacts bytes that arrive in pieces.
///
/// It holds back only what may be the beginning of a secret, so that output stays live; it
/// never holds more than the longest form, less one byte.
#[derive(Debug)]
pub struct RedactStream {
    redactor: Redactor,
    held: Vec<u8>,
    /// How many of the held bytes belong to a stretch whose replacement is already out.
    covered: usize,
}

impl RedactStream {
    /// Takes a piece and appends what is certain to `out`.
    pub fn push(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        let Some(patterns) = self.redactor.patterns.clone() else {
            out.extend_from_slice(bytes);
            return;
        };
        self.held.extend_from_slice(bytes);
        let cut = patterns.open_tail(&self.held);
        self.emit(&patterns, cut, out);
    }

    /// Appends the rest to `out`: nothing more will come.
    pub fn finish(&mut self, out: &mut Vec<u8>) {
        if let Some(patterns) = self.redactor.patterns.clone() {
            self.emit(&patterns, self.held.len(), out);
        }
    }

    /// Appends the rest to `out`: more would have come, and nobody took it. An end that may be
    /// the beginning of a secret is removed.
    pub fn finish_cut_off(&mut self, out: &mut Vec<u8>) {
        let begun = self.redactor.patterns.as_ref().and_then(|patterns| {
            let form = patterns.begun_form(&self.held)?;
            Some(patterns.replacement(form).to_vec())
        });
        match begun.filter(|_| self.held.len() >= SHORTEST_BEGUN) {
            Some(replacement) => {
                if self.covered == 0 {
                    out.extend_from_slice(&replacement);
                }
                self.held.clear();
                self.covered = 0;
            }
            None => self.finish(out),
        }
    }

    /// Emits everything before `cut`, at which no match can begin that is not yet complete.
    fn emit(&mut self, patterns: &Patterns, cut: usize, out: &mut Vec<u8>) {
        let mut at = self.covered;
        let mut covered_to = self.covered;
        for stretch in patterns.stretches(&patterns.exact, &self.held) {
            let continues = stretch.start < covered_to;
            if stretch.start >= cut && !continues {
                break;
            }
            if !continues {
                out.extend_from_slice(self.held.get(at..stretch.start).unwrap_or_default());
                out.extend_from_slice(patterns.replacement(stretch.form));
            }
            covered_to = covered_to.max(stretch.end);
            at = covered_to;
        }
        out.extend_from_slice(self.held.get(at..cut.max(at)).unwrap_or_default());
        self.covered = covered_to.saturating_sub(cut);
        self.held.drain(..cut);
    }
}

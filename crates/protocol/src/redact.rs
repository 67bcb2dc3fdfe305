//! Literal redaction of secret values from bytes that leave a run.
//!
//! Only exact values are found here, whole buffers at a time; encoded forms and streams are the
//! runner's. Bytes that are not text pass unchanged, so a binary diff still applies.

use crate::SecretName;

/// Returns `bytes` with every occurrence of every non-empty secret value replaced by
/// `[REDACTED:NAME]`, one secret after the other in the given order.
#[must_use]
pub fn redact(bytes: &[u8], secrets: &[(SecretName, String)]) -> Vec<u8> {
    let values = secrets.iter().filter(|(_, value)| !value.is_empty());
    values.fold(bytes.to_vec(), |text, (name, value)| {
        replace(&text, value.as_bytes(), format!("[REDACTED:{name}]").as_bytes())
    })
}

fn replace(text: &[u8], needle: &[u8], replacement: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((first, tail)) = rest.split_first() {
        match rest.strip_prefix(needle) {
            Some(after) => {
                out.extend_from_slice(replacement);
                rest = after;
            }
            None => {
                out.push(*first);
                rest = tail;
            }
        }
    }
    out
}

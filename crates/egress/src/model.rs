//! Recognizes calls to models in requests that can be read: by their path and the start of their
//! body.
//!
//! What is seen is what the program wrote; it is told as seen, and nothing is decided by it.
//! Requests inside TLS are not read, so nothing is seen of them but their host.

/// A call to a model, as the request says it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ModelCall {
    /// Whose protocol it speaks: `anthropic`, `openai`, `google`.
    pub provider: &'static str,
    /// Which model, or `unknown` when the body does not say it at its start.
    pub model: String,
}

/// How much of a body is looked at.
const MOST_BYTES: usize = 64 * 1024;
/// The longest name of a model.
const MOST_NAME: usize = 128;

/// Looks at the body of one request as it passes.
pub(crate) struct ModelPeek {
    provider: &'static str,
    start: Vec<u8>,
    is_done: bool,
}

impl ModelPeek {
    /// Returns a look at a request whose path is one that models are called by.
    pub(crate) fn of(method: &str, path: &str) -> Option<Self> {
        let path = path.split(['?', '#']).next().unwrap_or_default();
        let provider = match path.rsplit('/').next()? {
            "messages" => "anthropic",
            "responses" | "completions" | "embeddings" => "openai",
            last if last.ends_with(":generateContent")
                || last.ends_with(":streamGenerateContent") =>
            {
                "google"
            }
            _ => return None,
        };
        let mut peek = Self { provider, start: Vec::new(), is_done: method != "POST" };
        if provider == "google" {
            // This one says the model in its path.
            let name = path.rsplit('/').next().and_then(|last| last.split(':').next());
            peek.start = format!("\"model\":\"{}\"", name.unwrap_or_default()).into_bytes();
        }
        Some(peek)
    }

    /// Takes the next bytes of the body; returns the call once it is known.
    pub(crate) fn see(&mut self, bytes: &[u8]) -> Option<ModelCall> {
        if self.is_done {
            return None;
        }
        let room = MOST_BYTES.saturating_sub(self.start.len());
        self.start.extend_from_slice(bytes.get(..room.min(bytes.len())).unwrap_or_default());
        match model_in(&self.start) {
            Some(model) => self.tell(model),
            None if self.start.len() >= MOST_BYTES => self.tell("unknown".to_owned()),
            None => None,
        }
    }

    /// Ends the look; returns the call if it was not told before.
    pub(crate) fn end(&mut self) -> Option<ModelCall> {
        if self.is_done {
            return None;
        }
        let model = model_in(&self.start).unwrap_or_else(|| "unknown".to_owned());
        self.tell(model)
    }

    fn tell(&mut self, model: String) -> Option<ModelCall> {
        self.is_done = true;
        self.start = Vec::new();
        Some(ModelCall { provider: self.provider, model })
    }
}

/// Returns the value of the first member `model` in the text, if it is a plain name.
fn model_in(text: &[u8]) -> Option<String> {
    const MEMBER: &[u8] = b"\"model\"";
    let at = text.windows(MEMBER.len()).position(|window| window == MEMBER)?;
    let rest = text.get(at + MEMBER.len()..)?.trim_ascii_start();
    let rest = rest.strip_prefix(b":")?.trim_ascii_start().strip_prefix(b"\"")?;
    let end = rest.iter().position(|byte| *byte == b'"')?;
    let name = rest.get(..end).filter(|name| (1..=MOST_NAME).contains(&name.len()))?;
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"._:/@+-".contains(byte);
    let name = name.iter().all(is_plain).then_some(name)?;
    String::from_utf8(name.to_vec()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(path: &str, pieces: &[&str]) -> Option<(&'static str, String)> {
        let mut peek = ModelPeek::of("POST", path)?;
        let call = pieces.iter().find_map(|piece| peek.see(piece.as_bytes()));
        call.or_else(|| peek.end()).map(|call| (call.provider, call.model))
    }

    #[test]
    fn a_call_to_a_model_is_recognized_by_path_and_body() {
        let check = |path, pieces: &[&str], expected: Option<(&'static str, &str)>| {
            let expected = expected.map(|(provider, model)| (provider, model.to_owned()));
            assert_eq!(seen(path, pieces), expected, "{path} {pieces:?}");
        };
        check(
            "/v1/messages?beta=true",
            &[r#"{"model":"claude-x","m"#],
            Some(("anthropic", "claude-x")),
        );
        check("/v1/responses", &[r#"{"mod"#, r#"el" : "gpt-6", "#], Some(("openai", "gpt-6")));
        check("/v1/chat/completions", &["{}"], Some(("openai", "unknown")));
        check("/v1beta/models/gemini-9:generateContent", &["{}"], Some(("google", "gemini-9")));
        check("/index.html", &[r#"{"model":"x"}"#], None);
        check("/v1/messages", &["{\"model\":\"\u{1b}[2J\"}"], Some(("anthropic", "unknown")));
    }
}

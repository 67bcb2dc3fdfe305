//! One question to a provider: where it goes, what it wants to see, what is sent along.

use reqwest::Method;
use serde_json::Value;
use warrant_protocol::Digest;

/// What is sent along.
#[derive(Debug, Clone)]
pub(crate) enum Content {
    Nothing,
    Json(Value),
    /// These bytes as this type.
    Bytes(&'static str, Vec<u8>),
    /// Fields of a form, in order.
    Form(Vec<Field>),
}

/// A field of a form: name, file name, type, bytes. Names are ours and need no escaping.
pub(crate) type Field = (String, Option<String>, &'static str, Vec<u8>);

/// One question.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    /// What it is for, in errors.
    pub(crate) what: &'static str,
    pub(crate) method: Method,
    pub(crate) url: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) content: Content,
}

/// A server that is asked, and what it wants to see with every question.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Server {
    /// Without a slash at its end.
    pub(crate) base: String,
    pub(crate) headers: Vec<(String, String)>,
}

impl Server {
    /// Returns a question that changes nothing.
    pub(crate) fn get(&self, what: &'static str, path: &str) -> Call {
        self.ask(what, (Method::GET, path), Content::Nothing)
    }

    /// Returns a question that asks for something to be done.
    pub(crate) fn post(&self, what: &'static str, path: &str, content: Content) -> Call {
        self.ask(what, (Method::POST, path), content)
    }

    /// Returns a question that asks for something to be gone.
    pub(crate) fn delete(&self, what: &'static str, path: &str) -> Call {
        self.ask(what, (Method::DELETE, path), Content::Nothing)
    }

    fn ask(&self, what: &'static str, (method, path): (Method, &str), content: Content) -> Call {
        let url = format!("{}{path}", self.base);
        Call { what, method, url, headers: self.headers.clone(), content }
    }
}

impl Call {
    /// Returns the same question with one more header.
    pub(crate) fn with(mut self, name: &str, value: impl Into<String>) -> Self {
        self.headers.push((name.to_owned(), value.into()));
        self
    }
}

/// Returns the field of a form that carries a file.
pub(crate) fn file_field(name: &str, path: &str, bytes: &[u8]) -> Field {
    let file = path.rsplit('/').next().map(str::to_owned);
    (name.to_owned(), file, "application/octet-stream", bytes.to_vec())
}

/// Returns type and body of a form. The boundary is the digest of everything in it, so that
/// nothing in it can end it.
pub(crate) fn form(fields: &[Field]) -> (String, Vec<u8>) {
    let all: Vec<u8> = fields.iter().flat_map(|(_, _, _, bytes)| bytes.iter().copied()).collect();
    let boundary = format!("warrant-{}", Digest::of(&all).to_hex());
    let mut body = Vec::with_capacity(all.len() + 512);
    for (name, file, kind, bytes) in fields {
        let file = file.as_ref().map(|file| format!("; filename=\"{file}\"")).unwrap_or_default();
        let head = format!(
            "--{boundary}\r\nContent-Disposition: form-data; name=\"{name}\"{file}\r\n\
             Content-Type: {kind}\r\n\r\n"
        );
        body.extend_from_slice(head.as_bytes());
        body.extend_from_slice(bytes);
        body.extend_from_slice(b"\r\n");
    }
    body.extend_from_slice(format!("--{boundary}--\r\n").as_bytes());
    (format!("multipart/form-data; boundary={boundary}"), body)
}

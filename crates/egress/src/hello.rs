//! Reads the server name out of a TLS ClientHello, however it is cut into records.
//!
//! Owns no socket and decides nothing; what cannot be read in exactly one way is malformed.

/// What the first bytes of a tunnel are.
#[derive(Debug, PartialEq, Eq)]
pub enum Peek {
    /// TLS so far; more bytes are needed.
    More,
    /// A whole ClientHello.
    Hello(Hello),
    /// Not TLS.
    NotTls,
    /// TLS that cannot be read in exactly one way.
    Malformed,
}

/// What matters of a ClientHello.
#[derive(Debug, PartialEq, Eq)]
pub struct Hello {
    /// The server name, as sent.
    pub server_name: Option<Vec<u8>>,
    /// Whether another ClientHello may be encrypted inside.
    pub has_encrypted_hello: bool,
    /// Bytes of the records it came in.
    pub length: usize,
}

const HANDSHAKE: u8 = 22;
const CLIENT_HELLO: u8 = 1;
const SERVER_NAME: u16 = 0;
const ENCRYPTED_CLIENT_HELLO: u16 = 0xfe0d;
/// The draft's older code point for an encrypted server name.
const ENCRYPTED_SERVER_NAME: u16 = 0xffce;
const MAX_RECORD: usize = 16 * 1024;

/// Reads the first bytes of a tunnel.
#[must_use]
pub fn peek(bytes: &[u8]) -> Peek {
    match bytes.first() {
        None => return Peek::More,
        Some(&HANDSHAKE) => {}
        Some(_) => return Peek::NotTls,
    }
    let mut message = Vec::new();
    let mut rest = bytes;
    loop {
        match whole_message(&message) {
            Some(Ok(body)) => {
                let length = bytes.len() - rest.len();
                let hello = parse_hello(body, length);
                return hello.map_or(Peek::Malformed, Peek::Hello);
            }
            Some(Err(())) => return Peek::Malformed,
            None => {}
        }
        let [kind, major, _, high, low, tail @ ..] = rest else {
            let is_plausible = rest.first().is_none_or(|kind| *kind == HANDSHAKE)
                && rest.get(1).is_none_or(|major| *major == 3);
            return if is_plausible { Peek::More } else { Peek::Malformed };
        };
        let length = usize::from(u16::from_be_bytes([*high, *low]));
        if *kind != HANDSHAKE || *major != 3 || length == 0 || length > MAX_RECORD {
            return Peek::Malformed;
        }
        let Some((fragment, tail)) = tail.split_at_checked(length) else { return Peek::More };
        message.extend_from_slice(fragment);
        rest = tail;
    }
}

/// Returns the body of the ClientHello once all of it is there; an error when it is none.
fn whole_message(message: &[u8]) -> Option<Result<&[u8], ()>> {
    let (kind, rest) = message.split_first()?;
    if *kind != CLIENT_HELLO {
        return Some(Err(()));
    }
    let ([a, b, c], body) = rest.split_first_chunk::<3>()?;
    let length = usize::from(*a) << 16 | usize::from(*b) << 8 | usize::from(*c);
    body.get(..length).map(Ok)
}

fn parse_hello(body: &[u8], length: usize) -> Option<Hello> {
    let mut reader = Reader(body);
    reader.take(2 + 32)?;
    reader.vector8()?;
    reader.vector16()?;
    reader.vector8()?;
    let mut hello = Hello { server_name: None, has_encrypted_hello: false, length };
    if reader.0.is_empty() {
        return Some(hello);
    }
    let mut extensions = Reader(reader.vector16()?);
    if !reader.0.is_empty() {
        return None;
    }
    let mut has_server_name = false;
    while !extensions.0.is_empty() {
        let kind = extensions.u16()?;
        let value = extensions.vector16()?;
        match kind {
            // SECURITY: two server names would be read differently by two readers.
            SERVER_NAME if has_server_name => return None,
            SERVER_NAME => {
                has_server_name = true;
                hello.server_name = Some(parse_server_name(value)?);
            }
            ENCRYPTED_CLIENT_HELLO | ENCRYPTED_SERVER_NAME => hello.has_encrypted_hello = true,
            _ => {}
        }
    }
    Some(hello)
}

fn parse_server_name(value: &[u8]) -> Option<Vec<u8>> {
    let mut list = Reader(value);
    let mut names = Reader(list.vector16()?);
    let kind = names.take(1)?;
    let name = names.vector16()?;
    let is_one_host_name = kind == [0] && names.0.is_empty() && list.0.is_empty();
    is_one_host_name.then(|| name.to_vec())
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn u16(&mut self) -> Option<u16> {
        self.take(2)?.try_into().ok().map(u16::from_be_bytes)
    }

    fn vector8(&mut self) -> Option<&'a [u8]> {
        let length = *self.take(1)?.first()?;
        self.take(usize::from(length))
    }

    fn vector16(&mut self) -> Option<&'a [u8]> {
        let length = self.u16()?;
        self.take(usize::from(length))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vector16(bytes: &[u8]) -> Vec<u8> {
        let mut vector = u16::try_from(bytes.len()).unwrap().to_be_bytes().to_vec();
        vector.extend_from_slice(bytes);
        vector
    }

    fn extension(kind: u16, value: &[u8]) -> Vec<u8> {
        [kind.to_be_bytes().to_vec(), vector16(value)].concat()
    }

    fn server_name(name: &str) -> Vec<u8> {
        let entry = [vec![0], vector16(name.as_bytes())].concat();
        extension(SERVER_NAME, &vector16(&entry))
    }

    fn message(extensions: &[u8]) -> Vec<u8> {
        let mut body = vec![3, 3];
        body.extend_from_slice(&[7; 32]);
        body.extend_from_slice(&[0, 0, 2, 0x13, 0x01, 1, 0]);
        body.extend_from_slice(&vector16(extensions));
        let length = u32::try_from(body.len()).unwrap().to_be_bytes();
        [&[CLIENT_HELLO], &length[1..], &body].concat()
    }

    fn records(message: &[u8], size: usize) -> Vec<u8> {
        let record = |part: &[u8]| [vec![HANDSHAKE, 3, 1], vector16(part)].concat();
        message.chunks(size).flat_map(record).collect()
    }

    #[test]
    fn the_name_is_found_however_the_hello_is_cut() {
        let message = message(&server_name("a.example"));
        for size in [1, 2, 5, 40, 1000] {
            let bytes = records(&message, size);
            let hello = Hello {
                server_name: Some(b"a.example".to_vec()),
                has_encrypted_hello: false,
                length: bytes.len(),
            };
            for end in 0..bytes.len() {
                assert_eq!(peek(&bytes[..end]), Peek::More, "{size} {end}");
            }
            assert_eq!(peek(&bytes), Peek::Hello(hello));
        }
    }

    #[test]
    fn two_names_or_odd_records_are_malformed() {
        let twice = [server_name("a.example"), server_name("b.example")].concat();
        assert_eq!(peek(&records(&message(&twice), 999)), Peek::Malformed);
        let mut hello = records(&message(&server_name("a.example")), 999);
        hello[1] = 2;
        assert_eq!(peek(&hello), Peek::Malformed);
        assert_eq!(peek(&[HANDSHAKE, 3, 1, 0, 0]), Peek::Malformed);
        assert_eq!(peek(b"GET / HTTP/1.1"), Peek::NotTls);
    }

    #[test]
    fn an_encrypted_hello_is_seen() {
        let extensions =
            [server_name("a.example"), extension(ENCRYPTED_CLIENT_HELLO, &[0])].concat();
        let Peek::Hello(hello) = peek(&records(&message(&extensions), 999)) else { panic!() };
        assert!(hello.has_encrypted_hello);
    }
}

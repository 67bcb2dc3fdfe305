//! What a client of the explicit listener must show, where others than the run can reach it.

use std::fmt;

/// A user name and a random password, made for one run.
#[derive(Clone, PartialEq, Eq)]
pub struct Pass {
    password: String,
}

const USER: &str = "warrant";

impl Pass {
    /// Returns the pass these random bytes stand for.
    #[must_use]
    pub fn from_random(bytes: [u8; 16]) -> Self {
        Self { password: bytes.iter().map(|byte| format!("{byte:02x}")).collect() }
    }

    /// Returns `user:password` as it stands in the URL of a proxy.
    #[must_use]
    pub fn user_info(&self) -> String {
        format!("{USER}:{}", self.password)
    }

    /// Returns whether the value of a `Proxy-Authorization` header shows this pass.
    pub(crate) fn is_shown_by(&self, header: Option<&[u8]>) -> bool {
        let Some((scheme, value)) = header.and_then(|header| header.split_at_checked(6)) else {
            return false;
        };
        let expected = base64(self.user_info().as_bytes());
        scheme.eq_ignore_ascii_case(b"basic ") && is_same(value.trim_ascii(), expected.as_bytes())
    }

    /// Returns whether these are the user and the password.
    pub(crate) fn is_named_by(&self, user: &[u8], password: &[u8]) -> bool {
        user == USER.as_bytes() && is_same(password, self.password.as_bytes())
    }
}

impl fmt::Debug for Pass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<pass>")
    }
}

/// SECURITY: takes as long for a password that is wrong at its end as for one wrong at its start.
fn is_same(found: &[u8], expected: &[u8]) -> bool {
    let differing = found.iter().zip(expected).fold(0, |sum, (a, b)| sum | (a ^ b));
    found.len() == expected.len() && differing == 0
}

fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digit = |group: u32, at: u32| {
        let index = (group >> (18 - 6 * at)) & 63;
        ALPHABET.get(index as usize).map_or('=', |byte| char::from(*byte))
    };
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let byte = |at: usize| u32::from(chunk.get(at).copied().unwrap_or(0));
        let group = byte(0) << 16 | byte(1) << 8 | byte(2);
        let used = chunk.len() as u32 + 1;
        text.extend((0..4).map(|at| if at < used { digit(group, at) } else { '=' }));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_what_everyone_writes() {
        for (plain, expected) in [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foobar", "Zm9vYmFy")] {
            assert_eq!(base64(plain.as_bytes()), expected);
        }
    }

    #[test]
    fn only_the_whole_pass_is_a_pass() {
        let pass = Pass::from_random([7; 16]);
        let header = format!("Basic {}", base64(pass.user_info().as_bytes()));
        assert!(pass.is_shown_by(Some(header.as_bytes())));
        assert!(pass.is_shown_by(Some(header.replace("Basic", "bAsIc").as_bytes())));
        for wrong in [&header[..header.len() - 1], "Basic ", "Basic", "", "Bearer x", "Basic ===="]
        {
            assert!(!pass.is_shown_by(Some(wrong.as_bytes())), "{wrong}");
        }
        assert!(!pass.is_shown_by(None));
        assert!(!pass.is_shown_by(Some(format!("{header}x").as_bytes())));
        assert!(pass.is_named_by(b"warrant", "07".repeat(16).as_bytes()));
        assert!(!pass.is_named_by(b"warrant", b""));
        assert_eq!(format!("{pass:?}"), "<pass>");
    }
}

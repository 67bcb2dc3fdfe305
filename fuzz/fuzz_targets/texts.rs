//! Text into every reader of names, keys, tokens and patterns.
#![no_main]

use libfuzzer_sys::fuzz_target;
use warrant_protocol::authority::split_authority;
use warrant_protocol::glob::matches_pattern;
use warrant_protocol::{Claim, Host, PublicKey, RelPath, SigningKey, Timestamp};

fuzz_target!(|text: &str| {
    let plane = SigningKey::from_seed(&[1; 32]);
    if let Ok(now) = "2026-06-18T19:39:07.000Z".parse::<Timestamp>() {
        let _ = Claim::from_token(text, plane.public(), now);
    }
    let _ = (PublicKey::from_pem(text), SigningKey::from_pem(text));
    let _ = (text.parse::<Host>(), text.parse::<RelPath>(), text.parse::<Timestamp>());
    let _ = split_authority(text);
    let (path, pattern) = text.split_once('\n').unwrap_or((text, text));
    let _ = matches_pattern(path, pattern);
});

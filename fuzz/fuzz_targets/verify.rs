//! Bytes into the verifier: it never panics, and with no trusted keys it never says yes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use warrant_protocol::TrustedKeys;
use warrant_protocol::verify::verify_slice;

fuzz_target!(|bytes: &[u8]| {
    assert!(verify_slice(bytes, &TrustedKeys::none()).is_err());
});

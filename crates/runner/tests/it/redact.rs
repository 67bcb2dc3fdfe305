//! Redaction: every form, split anywhere, and nothing else touched.

use proptest::prelude::*;
use warrant_protocol::port::SecretValue;
use warrant_runner::Redactor;

fn redactor(pairs: &[(&str, &str)]) -> Redactor {
    let secret = |(name, value): &(&str, &str)| SecretValue {
        name: name.parse().unwrap(),
        value: (*value).to_owned(),
    };
    Redactor::new(&pairs.iter().map(secret).collect::<Vec<_>>()).unwrap()
}

#[track_caller]
fn check(pairs: &[(&str, &str)], input: &[u8], expected: &[u8]) {
    let redactor = redactor(pairs);
    let whole = redactor.redact(input);
    assert_eq!(String::from_utf8_lossy(&whole), String::from_utf8_lossy(expected));
    for size in [1, 2, 3, 5] {
        let mut stream = redactor.stream();
        let mut out = Vec::new();
        input.chunks(size).for_each(|chunk| stream.push(chunk, &mut out));
        stream.finish(&mut out);
        assert_eq!(out, expected, "in chunks of {size}");
    }
}

#[test]
fn the_reference_literal_cases_hold() {
    let text = include_str!("../../../../vectors/validators.json");
    let vectors: serde_json::Value = serde_json::from_str(text).unwrap();
    let bytes = |value: &serde_json::Value| {
        let hex = value.as_str().unwrap();
        let byte = |at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
        (0..hex.len()).step_by(2).map(byte).collect::<Vec<u8>>()
    };
    let mut checked = 0;
    for case in vectors["redaction"].as_array().unwrap() {
        let pairs: Vec<(&str, &str)> = case["secrets"]
            .as_array()
            .unwrap()
            .iter()
            .map(|entry| (entry["name"].as_str().unwrap(), entry["value"].as_str().unwrap()))
            .collect();
        let input = bytes(&case["inputHex"]);
        // The reference mangles what is not UTF-8 and redacts its own replacement text; we do not.
        let is_mangled = std::str::from_utf8(&input).is_err();
        if is_mangled || pairs.iter().any(|(_, value)| *value == "REDACTED") {
            continue;
        }
        check(&pairs, &input, &bytes(&case["outputHex"]));
        checked += 1;
    }
    assert_eq!(checked, 3);
}

#[test]
fn every_encoding_of_a_secret_is_removed() {
    let value = "p/ss wörd+\"42\"?x=1&y";
    let pairs = [("TOKEN", value)];
    for form in encodings(value) {
        let mut input = b"before ".to_vec();
        input.extend_from_slice(&form);
        input.extend_from_slice(b" after");
        let redacted = redactor(&pairs).redact(&input).into_owned();
        let text = String::from_utf8_lossy(&redacted);
        assert!(text.contains("[REDACTED:TOKEN]"), "{}", String::from_utf8_lossy(&form));
        assert!(text.starts_with("before ") && text.ends_with(" after"), "{text}");
    }
}

/// Every encoding, made by other means than the crate's own where that is easy.
pub(crate) fn encodings(value: &str) -> Vec<Vec<u8>> {
    let bytes = value.as_bytes();
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let percent: String = bytes.iter().map(|byte| format!("%{byte:02X}")).collect();
    let json = serde_json::to_string(value).unwrap();
    let mut forms = vec![
        bytes.to_vec(),
        hex.clone().into_bytes(),
        hex.to_uppercase().into_bytes(),
        percent.clone().into_bytes(),
        percent.to_lowercase().into_bytes(),
        json.as_bytes()[1..json.len() - 1].to_vec(),
        value.chars().rev().collect::<String>().into_bytes(),
        value.encode_utf16().flat_map(u16::to_le_bytes).collect(),
        value.encode_utf16().flat_map(u16::to_be_bytes).collect(),
    ];
    forms.extend(base64_of(value));
    forms
}

/// The value in the three alignments of base64, in both alphabets.
pub(crate) fn base64_of(value: &str) -> Vec<Vec<u8>> {
    use base64::Engine as _;
    use base64::engine::general_purpose::{STANDARD, URL_SAFE};
    let mut forms = Vec::new();
    for before in ["", "x", "xy"] {
        let padded = format!("{before}{value}");
        forms.push(STANDARD.encode(&padded).into_bytes());
        forms.push(URL_SAFE.encode(&padded).into_bytes());
    }
    forms
}

#[test]
fn overlapping_secrets_leave_no_rest() {
    check(&[("A", "abcdef"), ("B", "defghi")], b"-abcdefghi-", b"-[REDACTED:A]-");
    check(&[("A", "aaaa")], b"-aaaaaaaaa-", b"-[REDACTED:A]-");
}

#[test]
fn a_short_value_is_removed_only_literally() {
    check(&[("A", "ab")], b"ab ba YWI= 6162", b"[REDACTED:A] ba YWI= 6162");
    check(&[("A", "")], b"anything", b"anything");
}

#[test]
fn the_lines_of_a_key_are_removed_from_a_diff() {
    let key = "-----BEGIN KEY-----\nMIIBVgIBADANBgkq\nhkiG9w0BAQEFAASC\n-----END KEY-----\n";
    let diff = "+-----BEGIN KEY-----\n+MIIBVgIBADANBgkq\n+hkiG9w0BAQEFAASC\n+-----END KEY-----\n";
    let redacted = redactor(&[("KEY", key)]).redact_text(diff);
    assert!(!redacted.contains("MIIB") && !redacted.contains("hkiG"), "{redacted}");
    assert_eq!(redacted.lines().count(), 4, "the diff keeps its lines");
}

#[test]
fn short_lines_of_a_value_are_removed_from_a_diff_and_a_terminal() {
    let pairs = [("KEY", "ab12\ncd34\nef56")];
    let hidden = "+[REDACTED:KEY]\n+[REDACTED:KEY]\n+[REDACTED:KEY]\n";
    check(&pairs, b"+ab12\n+cd34\n+ef56\n", hidden.as_bytes());
    check(&pairs, b"-ab12\n-cd34\n-ef56\n", hidden.replace('+', "-").as_bytes());
    let shown = "[REDACTED:KEY]\r\n[REDACTED:KEY]\r\n[REDACTED:KEY]\r\n";
    check(&pairs, b"ab12\r\ncd34\r\nef56\r\n", shown.as_bytes());
}

#[test]
fn white_space_around_a_value_does_not_hide_it() {
    let pairs = [("TOKEN", " s3cr3t\n")];
    check(&pairs, b"[s3cr3t]", b"[[REDACTED:TOKEN]]");
    check(&pairs, b"733363723374", b"[REDACTED:TOKEN]");
}

#[test]
fn a_quoted_path_and_an_address_do_not_hide_a_value() {
    let value = "a\u{7}b\u{8}c\u{b}d\u{c}e\r<f>&/ü";
    for form in [
        r"a\ab\bc\vd\fe\r<f>&/\303\274",
        r"a\007b\010c\013d\014e\015<f>&/\303\274",
        r"a\u0007b\bc\u000bd\fe\r\u003cf\u003e\u0026/ü",
        "a%07b%08c%0Bd%0Ce%0D%3Cf%3E%26/%C3%BC",
        "a%07b%08c%0Bd%0Ce%0D%3Cf%3E&/%C3%BC",
    ] {
        check(&[("TOKEN", value)], form.as_bytes(), b"[REDACTED:TOKEN]");
    }
}

#[test]
fn a_secret_that_was_cut_off_leaves_no_beginning() {
    let redactor = redactor(&[("TOKEN", "hunter2hunter2")]);
    let cut_off = |input: &[u8]| {
        let mut stream = redactor.stream();
        let mut out = Vec::new();
        stream.push(input, &mut out);
        stream.finish_cut_off(&mut out);
        String::from_utf8(out).unwrap()
    };
    assert_eq!(cut_off(b"it is hunter2hunter"), "it is [REDACTED:TOKEN]");
    assert_eq!(cut_off(b"it is 68756e746572"), "it is [REDACTED:TOKEN]");
    assert_eq!(cut_off(b"we went to hun"), "we went to hun", "three bytes tell nothing");
    assert_eq!(cut_off(b"we went hunting"), "we went hunting");
}

#[test]
fn a_search_finds_what_was_split_over_pieces() {
    let redactor = redactor(&[("TOKEN", "hunter2hunter2")]);
    let finds = |input: &[u8], size: usize| {
        let search = redactor.search();
        input.chunks(size).for_each(|piece| search.look_at(piece));
        search.has_found()
    };
    for size in [1, 3, 7, 64] {
        assert!(finds(b"xx hunter2hunter2 yy", size), "in pieces of {size}");
        assert!(!finds(b"xx hunter2hunter3 yy", size), "in pieces of {size}");
    }
}

#[test]
fn a_host_is_redacted_whatever_its_case() {
    let redactor = redactor(&[("TOKEN", "AbCdEf123456")]);
    assert_eq!(redactor.redact_host("abcdef123456.evil.example"), "[REDACTED:TOKEN].evil.example");
}

#[test]
fn output_is_held_back_only_while_it_may_be_a_secret() {
    let redactor = redactor(&[("TOKEN", "hunter2hunter2")]);
    let mut stream = redactor.stream();
    let mut out = Vec::new();
    stream.push(b"Password: ", &mut out);
    assert_eq!(out, b"Password: ", "a prompt is live");
    stream.push(b"hunt", &mut out);
    assert_eq!(out, b"Password: ", "this may be the secret");
    stream.push(b"ing season", &mut out);
    assert_eq!(out, b"Password: hunting season");
}

proptest! {
    #[test]
    fn bytes_without_a_secret_pass_unchanged(input: Vec<u8>, cut in 1_usize..9) {
        let redactor = redactor(&[("TOKEN", "correct horse battery")]);
        let mut stream = redactor.stream();
        let mut out = Vec::new();
        input.chunks(cut).for_each(|chunk| stream.push(chunk, &mut out));
        stream.finish(&mut out);
        prop_assert_eq!(out, input);
    }

    #[test]
    fn no_chunking_lets_a_form_through(
        parts in prop::collection::vec(prop_oneof![
            Just(b"s3cr3t".to_vec()),
            Just(b"czNjcjN0".to_vec()),
            Just(b"s3c".to_vec()),
            Just(b"733363723374".to_vec()),
            prop::collection::vec(any::<u8>(), 0..6),
        ], 0..12),
        cut in 1_usize..9,
    ) {
        let input = parts.concat();
        let redactor = redactor(&[("A", "s3cr3t"), ("B", "cr3ts3c")]);
        let mut stream = redactor.stream();
        let mut out = Vec::new();
        input.chunks(cut).for_each(|chunk| stream.push(chunk, &mut out));
        stream.finish(&mut out);
        prop_assert!(!redactor.finds(&out));
        let whole = redactor.redact(&input).into_owned();
        prop_assert_eq!(out.is_empty(), whole.is_empty());
    }
}

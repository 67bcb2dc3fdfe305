//! Canonical JSON, digests, keys, signatures, names and claim tokens against the vectors.

use std::fmt::Debug;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use warrant_protocol::claim::InvalidClaim;
use warrant_protocol::keys::InvalidKey;
use warrant_protocol::{
    Claim, Digest, Host, KeyId, PoolName, PublicKey, RelPath, SecretName, SigningKey, Timestamp,
    canonicalize, hash_canonical, json as strict,
};

use crate::vectors::{bytes_of_hex, load, other_key, plane_key, plane_public, text};

#[test]
fn canonical_vectors_match_byte_for_byte() {
    let vectors = load("canonical.json");
    let mut seen = 0;
    for case in vectors["cases"].as_array().unwrap() {
        let (name, input) = (text(&case["name"]), text(&case["inputJson"]));
        if name == "lone-surrogates" {
            assert!(strict::parse(input.as_bytes()).is_err(), "lone surrogates are refused");
            continue;
        }
        let value = strict::parse(input.as_bytes()).unwrap();
        let canonical = canonicalize(&value);
        assert_eq!(canonical, text(&case["canonical"]), "{name}");
        assert_eq!(canonical.as_bytes(), bytes_of_hex(&case["canonicalUtf8Hex"]), "{name}");
        assert_eq!(hash_canonical(&value).to_hex(), text(&case["sha256"]), "{name}");
        seen += 1;
    }
    assert_eq!(seen, 11);
}

/// The number samples of RFC 8785, appendix B: the bits of a double and its text.
#[test]
fn rfc_8785_number_samples_match() {
    for (bits, expected) in [
        (0x0000_0000_0000_0000_u64, "0"),
        (0x8000_0000_0000_0000, "0"),
        (0x0000_0000_0000_0001, "5e-324"),
        (0x8000_0000_0000_0001, "-5e-324"),
        (0x7fef_ffff_ffff_ffff, "1.7976931348623157e+308"),
        (0xffef_ffff_ffff_ffff, "-1.7976931348623157e+308"),
        (0x4340_0000_0000_0000, "9007199254740992"),
        (0xc340_0000_0000_0000, "-9007199254740992"),
        (0x4430_0000_0000_0000, "295147905179352830000"),
        (0x44b5_2d02_c7e1_4af5, "9.999999999999997e+22"),
        (0x44b5_2d02_c7e1_4af6, "1e+23"),
        (0x44b5_2d02_c7e1_4af7, "1.0000000000000001e+23"),
        (0x444b_1ae4_d6e2_ef4e, "999999999999999700000"),
        (0x444b_1ae4_d6e2_ef4f, "999999999999999900000"),
        (0x444b_1ae4_d6e2_ef50, "1e+21"),
        (0x3eb0_c6f7_a0b5_ed8c, "9.999999999999997e-7"),
        (0x3eb0_c6f7_a0b5_ed8d, "0.000001"),
        (0x41b3_de43_5555_5553, "333333333.3333332"),
        (0x41b3_de43_5555_5554, "333333333.33333325"),
        (0x41b3_de43_5555_5555, "333333333.3333333"),
        (0x41b3_de43_5555_5556, "333333333.3333334"),
        (0x41b3_de43_5555_5557, "333333333.33333343"),
        (0xbecb_f647_612f_3696, "-0.0000033333333333333333"),
        (0x4314_3ff3_c1cb_0959, "1424953923781206.2"),
    ] {
        let number = serde_json::Number::from_f64(f64::from_bits(bits)).unwrap();
        assert_eq!(canonicalize(&Value::Number(number)), expected);
        assert_eq!(
            canonicalize(&strict::parse(expected.as_bytes()).unwrap()),
            expected,
            "parsing gives the same double back"
        );
    }
}

#[test]
fn keys_and_signatures_of_the_reference_are_reproduced() {
    let vectors = load("keys.json");
    for name in ["plane", "runner", "other"] {
        let vector = &vectors[name];
        let seed: [u8; 32] = bytes_of_hex(&vector["seedHex"]).try_into().unwrap();
        let key = SigningKey::from_seed(&seed);
        assert_eq!(key.public().as_bytes(), &*bytes_of_hex(&vector["publicKeyHex"]));
        assert_eq!(key.public().pem(), text(&vector["publicKeyPem"]));
        assert_eq!(key.to_secret_pem(), text(&vector["privateKeyPem"]));
        assert_eq!(key.public().id().as_str(), text(&vector["keyId"]));
        let again = SigningKey::from_pem(text(&vector["privateKeyPem"])).unwrap();
        assert_eq!(again.public(), key.public());
        assert_eq!(PublicKey::from_pem(key.public().pem()).unwrap(), *key.public());
    }
    for case in vectors["signatures"].as_array().unwrap() {
        let key =
            SigningKey::from_pem(text(&vectors[text(&case["key"])]["privateKeyPem"])).unwrap();
        let message = text(&case["messageUtf8"]).as_bytes();
        let signature = key.sign(message);
        assert_eq!(STANDARD.encode(signature), text(&case["sigBase64"]));
        assert_eq!(key.public().verify(message, &signature), Ok(()));
        assert!(key.public().verify(b"other", &signature).is_err());
        assert!(other_key().public().verify(message, &signature).is_err());
    }
    let token = &vectors["tokenHash"];
    assert_eq!(Digest::of(text(&token["token"]).as_bytes()).to_hex(), text(&token["sha256"]));
}

#[test]
fn a_key_id_is_of_the_pem_text_and_not_of_the_key() {
    let vectors = load("keys.json");
    let pem = text(&vectors["plane"]["publicKeyPem"]);
    let ids = &vectors["trimInsensitive"];
    assert_eq!(KeyId::of_pem(&format!("\n\n{pem}\n")).as_str(), text(&ids["withExtraNewlines"]));
    let crlf = pem.replace('\n', "\r\n");
    assert_eq!(KeyId::of_pem(&crlf).as_str(), text(&ids["crlfChangesId"]));
    assert_eq!(PublicKey::from_pem(&crlf).unwrap().pem(), crlf, "kept verbatim");
}

#[test]
fn text_that_is_no_ed25519_key_is_refused() {
    let pem = plane_public().pem().to_owned();
    let label = InvalidKey::Pem { label: "PUBLIC KEY" };
    let pem_of = |der: &[u8]| {
        format!("-----BEGIN PUBLIC KEY-----\n{}\n-----END PUBLIC KEY-----\n", STANDARD.encode(der))
    };
    let spki = [48, 42, 48, 5, 6, 3, 43, 101, 112, 3, 33, 0];
    let small_order = [&spki[..], &[0; 32]].concat();
    for (bad, expected) in [
        (String::new(), label),
        (pem.replace("PUBLIC", "PRIVATE"), InvalidKey::Pem { label: "PUBLIC KEY" }),
        (format!("{pem}{pem}"), InvalidKey::Pem { label: "PUBLIC KEY" }),
        (pem_of(&[0; 44]), InvalidKey::NotEd25519),
        (pem_of(&small_order), InvalidKey::Weak),
        (pem_of(&[&spki[..], &[1; 31]].concat()), InvalidKey::NotEd25519),
        (plane_key().to_secret_pem(), InvalidKey::Pem { label: "PUBLIC KEY" }),
    ] {
        assert_eq!(PublicKey::from_pem(&bad).unwrap_err(), expected, "{bad}");
    }
    assert!("ed25519:06B353723a3319cd".parse::<KeyId>().is_err());
}

#[track_caller]
fn check_names<T>(kind: &str)
where
    T: std::str::FromStr<Err: ToString + Debug> + ToString + Debug,
{
    for case in load("validators.json")[kind].as_array().unwrap() {
        let input = text(&case["input"]);
        match (input.parse::<T>(), case.get("output"), case.get("error")) {
            (Ok(name), Some(output), None) => assert_eq!(name.to_string(), text(output)),
            (Err(error), None, Some(expected)) => assert_eq!(error.to_string(), text(expected)),
            (result, ..) => panic!("{kind} {input:?}: {result:?}"),
        }
    }
}

#[test]
fn names_are_accepted_and_refused_like_the_reference() {
    check_names::<RelPath>("workspacePath");
    check_names::<PoolName>("poolName");
    check_names::<SecretName>("secretName");
    check_names::<Host>("hostAllowlist");
}

#[test]
fn claim_tokens_fail_in_the_reference_order_and_words() {
    let now: Timestamp = "2026-06-18T19:39:07.000Z".parse().unwrap();
    let vectors = load("claim-token.json");
    for case in vectors["cases"].as_array().unwrap() {
        let name = text(&case["name"]);
        let result = Claim::from_token(text(&case["token"]), &plane_public(), now);
        match (result, case.get("parsed"), case.get("error")) {
            (Ok(claim), Some(parsed), None) => {
                assert_eq!(claim.run_id.as_str(), text(&parsed["runId"]), "{name}");
                assert_eq!(claim.runner_id.as_str(), text(&parsed["runnerId"]), "{name}");
                assert_eq!(claim.nonce, text(&parsed["nonce"]), "{name}");
                assert_eq!(json!(claim.exp.unix_ms()), parsed["expMs"], "{name}");
                let run = claim.run_id.clone();
                assert_eq!(claim.check_opens(&run, Some(&claim.runner_id)), Ok(()));
                assert_eq!(claim.check_opens(&run, None), Err(InvalidClaim::RunnerMismatch));
                let other = "run_other".parse().unwrap();
                let result = claim.check_opens(&other, Some(&claim.runner_id));
                assert_eq!(result, Err(InvalidClaim::RunMismatch));
            }
            (Err(error), None, Some(expected)) => {
                assert_eq!(error.to_string(), text(&expected["message"]), "{name}");
                assert_eq!(error.is_unauthorized(), expected["status"] == 401, "{name}");
            }
            (result, ..) => panic!("{name}: {result:?}"),
        }
    }
}

#[test]
fn a_claim_token_of_ours_comes_back_and_ends_in_time() {
    let exp: Timestamp = "2026-06-18T19:49:07.000Z".parse().unwrap();
    let claim = Claim {
        run_id: "run_x".parse().unwrap(),
        runner_id: "rnr_x".parse().unwrap(),
        nonce: "AAAAAAAAAAAAAAAAAAAAAA".into(),
        exp,
        epoch: Some(3),
    };
    let token = claim.to_token(&plane_key()).unwrap();
    let before = "2026-06-18T19:49:06.999Z".parse().unwrap();
    assert_eq!(Claim::from_token(&token, &plane_public(), before), Ok(claim));
    assert_eq!(Claim::from_token(&token, &plane_public(), exp), Err(InvalidClaim::Expired));
    let other = other_key().public().clone();
    assert_eq!(Claim::from_token(&token, &other, before), Err(InvalidClaim::Signature));
}

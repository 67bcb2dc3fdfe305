//! Reads the golden vectors, values computed by the reference itself.

use serde_json::Value;
use warrant_protocol::{Contract, PublicKey, SigningKey, json};

/// Returns one vector file, parsed strictly.
pub(crate) fn load(name: &str) -> Value {
    let path = format!("{}/../../vectors/{name}", env!("CARGO_MANIFEST_DIR"));
    let bytes = std::fs::read(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    json::parse(&bytes).unwrap_or_else(|error| panic!("{path}: {}", error.detail()))
}

pub(crate) fn text(value: &Value) -> &str {
    value.as_str().unwrap()
}

pub(crate) fn plane_key() -> SigningKey {
    SigningKey::from_seed(&[1; 32])
}

pub(crate) fn runner_key() -> SigningKey {
    SigningKey::from_seed(&[2; 32])
}

pub(crate) fn other_key() -> SigningKey {
    SigningKey::from_seed(&[3; 32])
}

pub(crate) fn plane_public() -> PublicKey {
    plane_key().public().clone()
}

pub(crate) fn contract() -> Contract {
    Contract::from_value(load("contract.json")["contract"].clone()).unwrap()
}

pub(crate) fn bytes_of_hex(hex: &Value) -> Vec<u8> {
    let hex = text(hex).as_bytes();
    let digit = |byte: u8| char::from(byte).to_digit(16).unwrap() as u8;
    hex.chunks(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
}

//! What a program says, as each provider's wire carries it, taken apart and put together again.

use serde_json::{Value, json};

/// Changes every event of an E2B stream; those for which nothing is returned are left out.
pub(crate) fn envelopes(bytes: &[u8], change: fn(Value) -> Option<Value>) -> Vec<u8> {
    let mut rest = bytes;
    let mut changed = Vec::new();
    while rest.len() >= 5 {
        let length = u32::from_be_bytes([rest[1], rest[2], rest[3], rest[4]]) as usize;
        let message = serde_json::from_slice(&rest[5..5 + length]).unwrap();
        // The last envelope carries no event.
        let message = if rest[0] == 2 { Some(message) } else { change(message) };
        if let Some(message) = message {
            let body = message.to_string().into_bytes();
            changed.push(rest[0]);
            changed.extend(u32::try_from(body.len()).unwrap().to_be_bytes());
            changed.extend(body);
        }
        rest = &rest[5 + length..];
    }
    changed
}

/// Changes every event of an OpenSandbox stream.
pub(crate) fn events(bytes: &[u8], change: fn(Value) -> Option<Value>) -> Vec<u8> {
    let text = String::from_utf8(bytes.to_vec()).unwrap();
    let events = text.split("\n\n").filter(|event| !event.trim().is_empty());
    let changed = events
        .filter_map(|event| {
            change(serde_json::from_str(event.trim_start_matches("data:").trim()).unwrap())
        })
        .map(|event| format!("{event}\n\n"));
    changed.collect::<String>().into_bytes()
}

/// Every end of an E2B program is a good one.
pub(crate) fn e2b_always_well(bytes: &[u8]) -> Vec<u8> {
    envelopes(bytes, |mut message| {
        if message.pointer("/event/end").is_some() {
            message["event"]["end"] = json!({ "exited": true, "status": "exit status 0" });
        }
        Some(message)
    })
}

/// What an E2B program says on stderr comes on stdout.
pub(crate) fn e2b_merged(bytes: &[u8]) -> Vec<u8> {
    envelopes(bytes, |mut message| {
        if let Some(said) = message.pointer("/event/data/stderr").cloned() {
            message["event"]["data"] = json!({ "stdout": said });
        }
        Some(message)
    })
}

/// What an E2B program says is lost.
pub(crate) fn e2b_mute(bytes: &[u8]) -> Vec<u8> {
    envelopes(bytes, |message| message.pointer("/event/data").is_none().then_some(message))
}

/// Nobody tells how an E2B program ended.
pub(crate) fn e2b_endless(bytes: &[u8]) -> Vec<u8> {
    envelopes(bytes, |message| message.pointer("/event/end").is_none().then_some(message))
}

/// Every end of an OpenSandbox program is a good one.
pub(crate) fn opensandbox_always_well(bytes: &[u8]) -> Vec<u8> {
    events(bytes, |event| match event["type"] == "error" {
        true => Some(json!({ "type": "execution_complete", "execution_time": 1 })),
        false => Some(event),
    })
}

/// Nobody tells how an OpenSandbox program ended.
pub(crate) fn opensandbox_endless(bytes: &[u8]) -> Vec<u8> {
    events(bytes, |event| {
        let is_end = event["type"] == "error" || event["type"] == "execution_complete";
        (!is_end).then_some(event)
    })
}

/// What an OpenSandbox program says on stderr comes on stdout.
pub(crate) fn opensandbox_merged(bytes: &[u8]) -> Vec<u8> {
    events(bytes, |mut event| {
        if event["type"] == "stderr" {
            event["type"] = json!("stdout");
        }
        Some(event)
    })
}

/// The last byte that is not of a form's own is another one.
pub(crate) fn damaged(bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    let middle = bytes.len() / 2;
    if let Some(byte) = bytes.get_mut(middle) {
        *byte ^= 0x20;
    }
    bytes
}

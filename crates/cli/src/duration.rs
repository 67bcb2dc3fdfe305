//! Durations as people write them: `500ms`, `30s`, `5m`, `1h`.

/// The largest number that every reader of JSON keeps exactly.
const MOST_MS: u64 = (1 << 53) - 1;

/// Returns the milliseconds of a duration; a bare number is seconds.
pub(crate) fn parse(text: &str) -> Result<u64, String> {
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(split);
    let factor = match unit {
        "ms" => Some(1),
        "" | "s" => Some(1_000),
        "m" => Some(60_000),
        "h" => Some(3_600_000),
        _ => None,
    };
    let number = digits.parse::<u64>().ok();
    match number.zip(factor).and_then(|(number, factor)| number.checked_mul(factor)) {
        Some(ms @ 1..=MOST_MS) => Ok(ms),
        Some(1..) => Err("nothing takes that long".to_owned()),
        _ => Err("a duration is a whole number with ms, s, m or h, like 30s".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[track_caller]
    fn check(text: &str, expected: Option<u64>) {
        assert_eq!(parse(text).ok(), expected, "{text}");
    }

    #[test]
    fn durations_parse_as_people_write_them() {
        check("500ms", Some(500));
        check("30s", Some(30_000));
        check("30", Some(30_000));
        check("5m", Some(300_000));
        check("1h", Some(3_600_000));
        check("9007199254740991ms", Some(9_007_199_254_740_991));
        for bad in [
            "",
            "0s",
            "-1s",
            "1.5s",
            "s",
            "1d",
            "99999999999999999999h",
            "1 s",
            "9007199254740992ms",
        ] {
            check(bad, None);
        }
    }
}

//! Arguments taken apart the way GNU's `getopt_long` does.

/// One option a command takes.
pub(super) struct Known {
    /// Its letter, or `'\0'` for none.
    pub short: char,
    /// Its long name, or nothing.
    pub long: &'static str,
    /// Whether a value follows.
    pub value: TakesValue,
}

/// Whether an option has a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TakesValue {
    /// It has none.
    Never,
    /// It always has one.
    Always,
}

/// An option without a value.
pub(super) const fn flag(short: char, long: &'static str) -> Known {
    Known { short, long, value: TakesValue::Never }
}

/// An option with a value.
pub(super) const fn valued(short: char, long: &'static str) -> Known {
    Known { short, long, value: TakesValue::Always }
}

/// What a command line says.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Arguments {
    /// The options in order: by letter where they have one, else by name; with their values.
    pub options: Vec<(String, String)>,
    /// Everything else.
    pub operands: Vec<String>,
}

impl Arguments {
    /// Returns whether an option was given.
    pub(super) fn has(&self, name: &str) -> bool {
        self.options.iter().any(|(option, _)| option == name)
    }

    /// Returns the last value of an option.
    pub(super) fn value(&self, name: &str) -> Option<&str> {
        let last = self.options.iter().rev().find(|(option, _)| option == name);
        last.map(|(_, value)| value.as_str())
    }
}

/// Takes a command line apart; options may stand anywhere before `--`.
///
/// # Errors
/// The complaint of the command, when an option is not one of `known`.
pub(super) fn parse(name: &str, args: &[String], known: &[Known]) -> Result<Arguments, String> {
    let mut parsed = Arguments::default();
    let mut rest = args.iter();
    while let Some(arg) = rest.next() {
        if arg == "--" {
            parsed.operands.extend(rest.cloned());
            break;
        }
        if let Some(long) = arg.strip_prefix("--") {
            let (long, inline) = match long.split_once('=') {
                Some((long, value)) => (long, Some(value.to_owned())),
                None => (long, None),
            };
            let found = find_long(name, long, known)?;
            let value = match (found.value, inline) {
                (TakesValue::Never, Some(_)) => {
                    return Err(format!("{name}: option '--{long}' doesn't allow an argument"));
                }
                (TakesValue::Never, None) => String::new(),
                (TakesValue::Always, Some(value)) => value,
                (TakesValue::Always, None) => rest
                    .next()
                    .cloned()
                    .ok_or_else(|| format!("{name}: option '--{long}' requires an argument"))?,
            };
            parsed.options.push((key(found), value));
        } else if arg.len() > 1 && arg.starts_with('-') {
            let mut letters = arg.chars().skip(1);
            while let Some(letter) = letters.next() {
                let found = known.iter().find(|option| option.short == letter);
                let found = found.ok_or_else(|| format!("{name}: invalid option -- '{letter}'"))?;
                if found.value == TakesValue::Never {
                    parsed.options.push((key(found), String::new()));
                    continue;
                }
                let inline: String = letters.by_ref().collect();
                let value = if inline.is_empty() { rest.next().cloned() } else { Some(inline) };
                let value = value
                    .ok_or_else(|| format!("{name}: option requires an argument -- '{letter}'"))?;
                parsed.options.push((key(found), value));
            }
        } else {
            parsed.operands.push(arg.clone());
        }
    }
    Ok(parsed)
}

fn find_long<'a>(name: &str, long: &str, known: &'a [Known]) -> Result<&'a Known, String> {
    if let Some(exact) = known.iter().find(|option| option.long == long) {
        return Ok(exact);
    }
    let mut near = known.iter().filter(|option| option.long.starts_with(long) && !long.is_empty());
    match (near.next(), near.next()) {
        (Some(only), None) => Ok(only),
        (Some(_), Some(_)) => Err(format!("{name}: option '--{long}' is ambiguous")),
        (None, _) => Err(format!("{name}: unrecognized option '--{long}'")),
    }
}

fn key(option: &Known) -> String {
    if option.short == '\0' { option.long.to_owned() } else { option.short.to_string() }
}

/// Returns a count with the suffixes GNU takes: `2K`, `3MB`, `1b`.
pub(super) fn size(text: &str) -> Option<u64> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, suffix) = text.split_at_checked(digits)?;
    let number: u64 = number.parse().ok()?;
    let power = |base: u64, letter: &str| {
        let exponent = u32::try_from("KMGTPE".find(&letter.to_uppercase())?).ok()? + 1;
        base.checked_pow(exponent)
    };
    let unit = match suffix {
        "" => 1,
        "b" => 512,
        _ if suffix.len() == 1 => power(1024, suffix)?,
        _ => match suffix.strip_suffix("iB") {
            Some(letter) if letter.len() == 1 => power(1024, letter)?,
            Some(_) => return None,
            None => power(1000, suffix.strip_suffix('B').filter(|letter| letter.len() == 1)?)?,
        },
    };
    number.checked_mul(unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: [Known; 3] = [flag('r', "recursive"), valued('n', "lines"), flag('\0', "quiet")];

    fn strings(args: &[&str]) -> Vec<String> {
        args.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn options_stand_anywhere_and_in_bundles() {
        let parsed =
            parse("x", &strings(&["a", "-rn5", "--li=7", "--quiet", "--", "-b"]), &KNOWN).unwrap();
        assert_eq!(parsed.operands, ["a", "-b"]);
        assert_eq!(parsed.value("n"), Some("7"));
        assert!(parsed.has("r") && parsed.has("quiet"));
    }

    #[test]
    fn an_unknown_option_is_refused_by_name() {
        let refused = |args: &[&str]| parse("x", &strings(args), &KNOWN).unwrap_err();
        assert_eq!(refused(&["-q"]), "x: invalid option -- 'q'");
        assert_eq!(refused(&["--nope"]), "x: unrecognized option '--nope'");
        assert_eq!(refused(&["-n"]), "x: option requires an argument -- 'n'");
    }

    #[test]
    fn sizes_take_gnu_suffixes() {
        assert_eq!(size("3"), Some(3));
        assert_eq!(size("2K"), Some(2048));
        assert_eq!(size("2kB"), Some(2000));
        assert_eq!(size("1MiB"), Some(1 << 20));
        assert_eq!(size("1b"), Some(512));
        assert_eq!(size("x"), None);
        assert_eq!(size("1Q"), None);
    }
}

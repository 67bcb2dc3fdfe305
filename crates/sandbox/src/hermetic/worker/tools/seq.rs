//! `seq` and `yes`, which end when they are done or when nobody reads any more.

use async_trait::async_trait;
use bashkit::{Command, CommandContext, CommandStatus, Result};

use super::arguments::{self, Arguments, Known, flag, valued};
use super::complain;

const OPTIONS: [Known; 3] =
    [valued('f', "format"), valued('s', "separator"), flag('w', "equal-width")];

/// Bytes written in one step.
const CHUNK: usize = 1 << 14;

/// The command `seq`.
pub(super) struct Seq;

/// The command `yes`.
pub(super) struct Yes;

#[async_trait]
impl Command for Seq {
    async fn execute(&self, ctx: CommandContext<'_>) -> Result<CommandStatus> {
        let sequence = arguments::parse("seq", &negatives_as_operands(ctx.args), &OPTIONS)
            .and_then(|args| Sequence::new(&args));
        let sequence = match sequence {
            Ok(sequence) => sequence,
            Err(complaint) => {
                complain(&ctx.stderr, &complaint).await?;
                return Ok(CommandStatus::with_code(1));
            }
        };
        let mut text = String::with_capacity(CHUNK + 64);
        let mut count = 0_u64;
        while let Some(number) = sequence.number(count) {
            if count > 0 {
                text.push_str(&sequence.separator);
            }
            text.push_str(&number);
            count += 1;
            if text.len() >= CHUNK {
                ctx.stdout.write_all(text.as_bytes()).await?;
                text.clear();
            }
        }
        if count > 0 {
            text.push('\n');
        }
        ctx.stdout.write_all(text.as_bytes()).await?;
        Ok(CommandStatus::success())
    }
}

#[async_trait]
impl Command for Yes {
    async fn execute(&self, ctx: CommandContext<'_>) -> Result<CommandStatus> {
        let line = if ctx.args.is_empty() { "y".to_owned() } else { ctx.args.join(" ") };
        let line = format!("{line}\n");
        let text = line.repeat((CHUNK / line.len()).max(1));
        loop {
            // Ends when the reader is gone, or with the run.
            ctx.stdout.write_all(text.as_bytes()).await?;
        }
    }
}

/// Lets `getopt` take `-1` for the number it is.
fn negatives_as_operands(args: &[String]) -> Vec<String> {
    let is_number = |arg: &String| {
        let digits = arg.strip_prefix('-').unwrap_or_default();
        digits.starts_with(|c: char| c.is_ascii_digit() || c == '.')
    };
    match args.iter().position(|arg| is_number(arg) || !arg.starts_with('-')) {
        Some(at) if is_value(args, at) => args.to_vec(),
        Some(at) => {
            let (options, operands) = args.split_at_checked(at).unwrap_or((args, &[]));
            [options, &["--".to_owned()], operands].concat()
        }
        None => args.to_vec(),
    }
}

/// Returns whether the argument is the value of the option before it.
fn is_value(args: &[String], at: usize) -> bool {
    let before = at.checked_sub(1).and_then(|before| args.get(before));
    before.is_some_and(|before| {
        matches!(before.as_str(), "-s" | "-f" | "-ws" | "-wf" | "--separator" | "--format")
    })
}

/// What is to be counted, as decimal numbers scaled to integers.
struct Sequence {
    first: i128,
    step: i128,
    last: i128,
    /// Digits behind the point in `first`, `step` and `last`.
    scale: usize,
    /// Digits behind the point that are shown.
    shown: usize,
    width: usize,
    separator: String,
    format: Option<Format>,
}

impl Sequence {
    fn new(args: &Arguments) -> std::result::Result<Self, String> {
        let (first, step, last) = match args.operands.as_slice() {
            [] => return Err("seq: missing operand".into()),
            [last] => ("1", "1", last.as_str()),
            [first, last] => (first.as_str(), "1", last.as_str()),
            [first, step, last] => (first.as_str(), step.as_str(), last.as_str()),
            [_, _, _, extra, ..] => return Err(format!("seq: extra operand '{extra}'")),
        };
        let [first, step, last] = [Decimal::new(first)?, Decimal::new(step)?, Decimal::new(last)?];
        if step.units == 0 {
            return Err("seq: invalid Zero increment value: '0'".into());
        }
        let shown = first.scale.max(step.scale);
        let scale = shown.max(last.scale);
        let width = if args.has("w") { first.width(shown).max(last.width(shown)) } else { 0 };
        let format = args.value("f").map(Format::new).transpose()?;
        if format.is_some() && args.has("w") {
            return Err(
                "seq: format string may not be specified when printing equal width strings".into(),
            );
        }
        let scaled = |number: &Decimal| {
            number.scaled(scale).ok_or_else(|| "seq: number out of range".to_owned())
        };
        Ok(Self {
            first: scaled(&first)?,
            step: scaled(&step)?,
            last: scaled(&last)?,
            scale,
            shown,
            width,
            separator: args.value("s").unwrap_or("\n").to_owned(),
            format,
        })
    }

    /// Returns a number of the sequence, as shown.
    fn number(&self, index: u64) -> Option<String> {
        let number = self.step.checked_mul(i128::from(index))?.checked_add(self.first)?;
        let is_past = if self.step > 0 { number > self.last } else { number < self.last };
        if is_past {
            return None;
        }
        let text = decimal(number, self.scale, self.shown);
        match &self.format {
            Some(format) => Some(format.apply(&text)),
            None if text.len() < self.width => {
                let (sign, digits) =
                    text.strip_prefix('-').map_or(("", text.as_str()), |d| ("-", d));
                let width = self.width - sign.len();
                Some(format!("{sign}{digits:0>width$}"))
            }
            None => Some(text),
        }
    }
}

/// A number as written.
struct Decimal {
    units: i128,
    scale: usize,
    is_negative: bool,
    whole: usize,
}

impl Decimal {
    fn new(text: &str) -> std::result::Result<Self, String> {
        let wrong = || format!("seq: invalid floating point argument: '{text}'");
        let trimmed = text.trim_start();
        let is_negative = trimmed.starts_with('-');
        let plain = trimmed.trim_start_matches(['-', '+']);
        let (mantissa, exponent) = match plain.split_once(['e', 'E']) {
            Some((mantissa, exponent)) => (mantissa, exponent.parse::<i32>().map_err(|_| wrong())?),
            None => (plain, 0),
        };
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let is_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        if whole.len() + fraction.len() == 0 || !is_digits(whole) || !is_digits(fraction) {
            return Err(wrong());
        }
        let mut units: i128 = format!("0{whole}{fraction}").parse().map_err(|_| wrong())?;
        let mut scale = fraction.len();
        let shift = usize::try_from(exponent.unsigned_abs()).unwrap_or(usize::MAX);
        if exponent < 0 {
            scale = scale.saturating_add(shift);
        } else {
            let absorbed = shift.min(scale);
            scale -= absorbed;
            let power = u32::try_from(shift - absorbed).unwrap_or(u32::MAX);
            units =
                10_i128.checked_pow(power).and_then(|p| units.checked_mul(p)).ok_or_else(wrong)?;
        }
        if scale > 30 {
            return Err(wrong());
        }
        let units = if is_negative { -units } else { units };
        Ok(Self { units, scale, is_negative, whole: whole.len().max(1) })
    }

    fn scaled(&self, scale: usize) -> Option<i128> {
        let power = u32::try_from(scale.checked_sub(self.scale)?).ok()?;
        self.units.checked_mul(10_i128.checked_pow(power)?)
    }

    fn width(&self, shown: usize) -> usize {
        let point = if shown > 0 { shown + 1 } else { 0 };
        usize::from(self.is_negative) + self.whole + point
    }
}

/// Returns a scaled integer as a decimal number.
fn decimal(number: i128, scale: usize, shown: usize) -> String {
    let sign = if number < 0 { "-" } else { "" };
    let digits = format!("{:0>1$}", number.unsigned_abs(), scale + 1);
    let (whole, fraction) = digits.split_at_checked(digits.len() - scale).unwrap_or((&digits, ""));
    match fraction.get(..shown) {
        Some(fraction) if !fraction.is_empty() => format!("{sign}{whole}.{fraction}"),
        _ => format!("{sign}{whole}"),
    }
}

/// The one directive of `-f`, taken apart.
struct Format {
    before: String,
    after: String,
    minus: bool,
    zero: bool,
    plus: bool,
    width: usize,
    precision: Option<usize>,
    kind: char,
}

impl Format {
    fn new(format: &str) -> std::result::Result<Self, String> {
        let wrong = || {
            format!(
                "seq: format '{format}' has no % directive that is supported here; use %g, %f or %e"
            )
        };
        let (before, directive) = format.split_once('%').ok_or_else(wrong)?;
        if directive.starts_with('%') || before.contains('%') {
            return Err(wrong());
        }
        let flags: String = directive.chars().take_while(|c| "-+0 ".contains(*c)).collect();
        let rest = directive.get(flags.len()..).unwrap_or_default();
        let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let (width, rest) = rest.split_at_checked(digits).ok_or_else(wrong)?;
        let (precision, rest) = match rest.strip_prefix('.') {
            Some(rest) => {
                let digits =
                    rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
                let (precision, rest) = rest.split_at_checked(digits).ok_or_else(wrong)?;
                (Some(precision.parse().unwrap_or(0)), rest)
            }
            None => (None, rest),
        };
        let kind = rest.chars().next().filter(|kind| "fgeFGE".contains(*kind)).ok_or_else(wrong)?;
        let after = rest.get(1..).unwrap_or_default();
        if after.replace("%%", "").contains('%') {
            return Err(format!("seq: format '{format}' has too many % directives"));
        }
        Ok(Self {
            before: before.to_owned(),
            after: after.replace("%%", "%"),
            minus: flags.contains('-'),
            zero: flags.contains('0'),
            plus: flags.contains('+'),
            width: width.parse().unwrap_or(0),
            precision,
            kind: kind.to_ascii_lowercase(),
        })
    }

    fn apply(&self, number: &str) -> String {
        let value: f64 = number.parse().unwrap_or(f64::NAN);
        let mut text = match self.kind {
            'f' => format!("{value:.0$}", self.precision.unwrap_or(6)),
            'e' => exponent(value, self.precision.unwrap_or(6)),
            _ => general(value, self.precision.unwrap_or(6)),
        };
        if self.plus && !text.starts_with('-') {
            text.insert(0, '+');
        }
        let missing = self.width.saturating_sub(text.len());
        let padded = if self.minus {
            format!("{text}{}", " ".repeat(missing))
        } else if self.zero {
            let sign = usize::from(text.starts_with(['-', '+']));
            let (sign, digits) = text.split_at_checked(sign).unwrap_or(("", &text));
            format!("{sign}{}{digits}", "0".repeat(missing))
        } else {
            format!("{}{text}", " ".repeat(missing))
        };
        format!("{}{padded}{}", self.before, self.after)
    }
}

fn exponent(value: f64, precision: usize) -> String {
    let text = format!("{value:.precision$e}");
    let (mantissa, power) = text.split_once('e').unwrap_or((&text, "0"));
    let (sign, digits) = power.strip_prefix('-').map_or(('+', power), |digits| ('-', digits));
    format!("{mantissa}e{sign}{digits:0>2}")
}

fn general(value: f64, precision: usize) -> String {
    let precision = precision.max(1);
    let scientific = format!("{value:.0$e}", precision - 1);
    let power: i32 = scientific.rsplit('e').next().and_then(|p| p.parse().ok()).unwrap_or(0);
    let limit = i32::try_from(precision).unwrap_or(i32::MAX);
    if power < -4 || power >= limit {
        let text = exponent(value, precision - 1);
        let (mantissa, power) = text.split_once('e').unwrap_or((&text, "+00"));
        return format!("{}e{power}", trimmed(mantissa));
    }
    let places = usize::try_from(limit - 1 - power).unwrap_or(0);
    trimmed(&format!("{value:.places$}")).to_owned()
}

fn trimmed(number: &str) -> &str {
    if !number.contains('.') {
        return number;
    }
    number.trim_end_matches('0').trim_end_matches('.')
}

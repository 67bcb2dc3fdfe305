//! Decimal numbers of any length, with the scale rules of `bc`.

use num_bigint::{BigInt, Sign};

/// A decimal number: `units` divided by ten to the `scale`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Number {
    pub(super) units: BigInt,
    pub(super) scale: usize,
}

impl Number {
    /// Returns a whole number.
    pub(super) fn whole(value: impl Into<BigInt>) -> Self {
        Self { units: value.into(), scale: 0 }
    }

    /// Reads a number whose digits are of `base`.
    pub(super) fn parse(text: &str, base: u32) -> Option<Self> {
        let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
        let digit = |c: char| c.to_digit(16).filter(|_| !c.is_lowercase());
        // As in POSIX, a single digit means itself, in several the largest is base - 1.
        let is_single = whole.len() + fraction.len() == 1;
        let clamp = |digit: u32| if is_single { digit } else { digit.min(base - 1) };
        let mut units = BigInt::from(0);
        for c in whole.chars() {
            units = units * base + clamp(digit(c)?);
        }
        let mut number = Self::whole(units);
        if fraction.is_empty() {
            return Some(number);
        }
        let mut below = BigInt::from(0);
        for c in fraction.chars() {
            below = below * base + clamp(digit(c)?);
        }
        let divisor = BigInt::from(base).pow(u32::try_from(fraction.len()).ok()?);
        let scale = fraction.len();
        let below = Self { units: below * power(scale) / divisor, scale };
        number = number.plus(&below);
        Some(number)
    }

    /// Returns the number cut or extended to `scale` digits behind the point.
    pub(super) fn at(&self, scale: usize) -> Self {
        let units = match scale.checked_sub(self.scale) {
            Some(more) => &self.units * power(more),
            None => &self.units / power(self.scale - scale),
        };
        Self { units, scale }
    }

    /// Returns whether it is nothing.
    pub(super) fn is_zero(&self) -> bool {
        self.units.sign() == Sign::NoSign
    }

    /// Returns whether it is less than nothing.
    pub(super) fn is_negative(&self) -> bool {
        self.units.sign() == Sign::Minus
    }

    pub(super) fn negated(&self) -> Self {
        Self { units: -&self.units, scale: self.scale }
    }

    pub(super) fn plus(&self, other: &Self) -> Self {
        let scale = self.scale.max(other.scale);
        Self { units: self.at(scale).units + other.at(scale).units, scale }
    }

    pub(super) fn minus(&self, other: &Self) -> Self {
        self.plus(&other.negated())
    }

    /// Multiplies; the result keeps what `bc` keeps.
    pub(super) fn times(&self, other: &Self, scale: usize) -> Self {
        let full = self.scale + other.scale;
        let kept = full.min(scale.max(self.scale).max(other.scale));
        Self { units: &self.units * &other.units, scale: full }.at(kept)
    }

    /// Divides, towards nothing; `None` when the divisor is nothing.
    pub(super) fn over(&self, other: &Self, scale: usize) -> Option<Self> {
        if other.is_zero() {
            return None;
        }
        let dividend = &self.units * power(scale + other.scale);
        let divisor = &other.units * power(self.scale);
        Some(Self { units: dividend / divisor, scale })
    }

    /// Returns what a division leaves.
    pub(super) fn modulo(&self, other: &Self, scale: usize) -> Option<Self> {
        let quotient = self.over(other, scale)?;
        let kept = self.scale.max(scale + other.scale);
        let product =
            Self { units: &quotient.units * &other.units, scale: quotient.scale + other.scale };
        Some(self.minus(&product).at(kept))
    }

    /// Raises to a whole power.
    pub(super) fn to_the(&self, exponent: &Self, scale: usize) -> Option<Self> {
        let exponent = i64::try_from(&exponent.at(0).units).ok()?;
        let count = u32::try_from(exponent.unsigned_abs()).ok()?;
        let full = self.scale.checked_mul(usize::try_from(count).ok()?)?;
        let raised = Self { units: self.units.pow(count), scale: full };
        if exponent < 0 {
            return Self::whole(1).over(&raised, scale);
        }
        Some(raised.at(full.min(scale.max(self.scale))))
    }

    /// Returns the square root; `None` for what has none.
    pub(super) fn root(&self, scale: usize) -> Option<Self> {
        if self.is_negative() {
            return None;
        }
        let scale = scale.max(self.scale);
        let widened = &self.units * power(2 * scale - self.scale);
        Some(Self { units: widened.sqrt(), scale })
    }

    /// Returns how many digits matter.
    pub(super) fn length(&self) -> usize {
        self.units.magnitude().to_string().len().max(self.scale)
    }

    /// Returns the number as `bc` prints it.
    pub(super) fn shown(&self, base: u32) -> String {
        let sign = if self.is_negative() { "-" } else { "" };
        if base == 10 {
            let digits = format!("{:0>1$}", self.units.magnitude().to_string(), self.scale);
            let (whole, fraction) =
                digits.split_at_checked(digits.len() - self.scale).unwrap_or((&digits, ""));
            let text = match (whole, fraction) {
                (whole, "") => whole.to_owned(),
                (whole, fraction) => format!("{whole}.{fraction}"),
            };
            return if self.is_zero() { "0".into() } else { format!("{sign}{text}") };
        }
        let whole = Self { units: self.units.magnitude().clone().into(), scale: self.scale }.at(0);
        let mut text = match base {
            2..=16 => whole.units.to_str_radix(base).to_uppercase(),
            _ => wide_digits(&whole.units, base),
        };
        if self.scale > 0 {
            text = format!("{text}.{}", self.fraction_digits(base));
        }
        format!("{sign}{text}")
    }

    fn fraction_digits(&self, base: u32) -> String {
        let one = power(self.scale);
        let mut below = BigInt::from(self.units.magnitude().clone()) % &one;
        let mut reached = BigInt::from(1);
        let mut digits = String::new();
        while reached < one {
            below *= base;
            let digit = (&below / &one).to_str_radix(16).to_uppercase();
            digits.push_str(&digit);
            below %= &one;
            reached *= base;
        }
        digits
    }
}

fn wide_digits(number: &BigInt, base: u32) -> String {
    let width = (base - 1).to_string().len();
    let (mut left, mut digits) = (number.clone(), Vec::new());
    while left.sign() == Sign::Plus {
        digits.push(format!(" {:0>width$}", (&left % base).to_string()));
        left /= base;
    }
    digits.into_iter().rev().collect()
}

/// Returns ten to the `exponent`.
pub(super) fn power(exponent: usize) -> BigInt {
    BigInt::from(10).pow(u32::try_from(exponent).unwrap_or(u32::MAX))
}

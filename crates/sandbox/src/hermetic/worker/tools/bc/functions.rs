//! The functions of `bc -l`, by series, with digits to spare.

use super::number::Number;

/// Digits worked with beyond those that are kept.
const SPARE: usize = 12;

/// Returns a function of the math library, cut to `scale`; `None` when there is no such one or
/// it has no value there.
pub(super) fn apply(name: &str, x: &Number, scale: usize) -> Option<Number> {
    let digits = scale + SPARE;
    let value = match name {
        "e" => exponential(x, digits)?,
        "l" => logarithm(x, digits)?,
        "s" => wave(x, digits, Wave::Sine)?,
        "c" => wave(x, digits, Wave::Cosine)?,
        "a" => arctangent(x, digits)?,
        _ => return None,
    };
    Some(value.at(scale))
}

fn exponential(x: &Number, digits: usize) -> Option<Number> {
    if x.is_negative() {
        return Number::whole(1).over(&exponential(&x.negated(), digits * 2)?, digits);
    }
    // Halved until small, then squared back.
    let (mut small, mut halvings) = (x.at(digits * 2), 0_u32);
    while small.minus(&Number { units: 1.into(), scale: 1 }).units > 0.into() {
        small = small.over(&Number::whole(2), digits * 2)?;
        halvings += 1;
        if halvings > 64 {
            return None;
        }
    }
    let work = digits * 2;
    let (mut term, mut sum, mut n) = (Number::whole(1), Number::whole(1).at(work), 1_u64);
    while !term.is_zero() {
        term = term.times(&small, work).over(&Number::whole(n), work)?;
        sum = sum.plus(&term);
        n += 1;
    }
    for _ in 0..halvings {
        sum = sum.times(&sum, work).at(work);
    }
    Some(sum)
}

fn logarithm(x: &Number, digits: usize) -> Option<Number> {
    if x.is_negative() || x.is_zero() {
        return None;
    }
    // Roots until near one, then twice the series of the hyperbolic arctangent.
    let work = digits + SPARE;
    let (mut near, mut doublings) = (x.at(work), 1_u32);
    let tenth = Number { units: 1.into(), scale: 1 };
    loop {
        let away = near.minus(&Number::whole(1));
        let away = if away.is_negative() { away.negated() } else { away };
        if away.minus(&tenth).is_negative() {
            break;
        }
        near = near.root(work)?;
        doublings += 1;
        if doublings > 200 {
            return None;
        }
    }
    let ratio = near.minus(&Number::whole(1)).over(&near.plus(&Number::whole(1)), work)?;
    let sum = odd_series(&ratio, work, Signs::Same)?;
    let factor = Number::whole(2).to_the(&Number::whole(doublings), 0)?;
    Some(sum.times(&factor, work))
}

/// Whether the terms of a series change their sign.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Signs {
    Same,
    Alternating,
}

/// Returns x + x³/3 + x⁵/5 …, or with alternating signs.
fn odd_series(x: &Number, work: usize, signs: Signs) -> Option<Number> {
    let square = x.times(x, work).at(work);
    let square = if signs == Signs::Alternating { square.negated() } else { square };
    let (mut raised, mut sum, mut n) = (x.at(work), x.at(work), 1_u64);
    loop {
        raised = raised.times(&square, work).at(work);
        n += 2;
        let term = raised.over(&Number::whole(n), work)?;
        if term.is_zero() {
            return Some(sum);
        }
        sum = sum.plus(&term);
    }
}

fn arctangent(x: &Number, digits: usize) -> Option<Number> {
    // Half the angle until it is small: atan(x) = 2 atan(x / (1 + √(1 + x²))).
    let work = digits + SPARE;
    let (mut small, mut doublings) = (x.at(work), 0_u32);
    let fifth = Number { units: 2.into(), scale: 1 };
    loop {
        let size = if small.is_negative() { small.negated() } else { small.clone() };
        if size.minus(&fifth).is_negative() {
            break;
        }
        let root = Number::whole(1).plus(&small.times(&small, work)).root(work)?;
        small = small.over(&Number::whole(1).plus(&root), work)?;
        doublings += 1;
    }
    let sum = odd_series(&small, work, Signs::Alternating)?;
    let factor = Number::whole(2).to_the(&Number::whole(doublings), 0)?;
    Some(sum.times(&factor, work))
}

fn half_pi(digits: usize) -> Option<Number> {
    Some(arctangent(&Number::whole(1), digits)?.times(&Number::whole(2), digits))
}

/// Which of the two series is summed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wave {
    Sine,
    Cosine,
}

fn wave(x: &Number, digits: usize, wave: Wave) -> Option<Number> {
    let work = digits + SPARE + x.length();
    let turn = half_pi(work)?.times(&Number::whole(4), work);
    let turns = x.over(&turn, 0)?;
    let small = x.minus(&turns.times(&turn, work)).at(work);
    let square = small.times(&small, work).at(work).negated();
    let (mut term, mut n) = match wave {
        Wave::Sine => (small, 1_u64),
        Wave::Cosine => (Number::whole(1).at(work), 0),
    };
    let mut sum = term.clone();
    while !term.is_zero() {
        let divisor = Number::whole((n + 1) * (n + 2));
        term = term.times(&square, work).over(&divisor, work)?;
        sum = sum.plus(&term);
        n += 2;
    }
    Some(sum)
}

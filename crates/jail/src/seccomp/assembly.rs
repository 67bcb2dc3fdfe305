//! The assembler of the filter: verdicts about system calls become a balanced tree of BPF.
//!
//! What the table does not name answers `ENOSYS`. Neighbors with the same verdict become one leaf.
//! The tree keeps the number of comparisons per call near the logarithm of the table, which also
//! keeps the kernel's own preparation of the filter short.

use std::collections::BTreeMap;

use libc::{c_long, sock_filter};

pub(super) const LOAD_WORD: u16 = 0x20;
pub(super) const JUMP: u16 = 0x05;
pub(super) const JUMP_EQUAL: u16 = 0x15;
pub(super) const JUMP_GREATER: u16 = 0x25;
pub(super) const JUMP_GREATER_EQUAL: u16 = 0x35;
pub(super) const JUMP_ANY_BIT: u16 = 0x45;
pub(super) const AND: u16 = 0x54;
pub(super) const RETURN: u16 = 0x06;

pub(super) const ALLOW: u32 = 0x7fff_0000;
pub(super) const KILL_PROCESS: u32 = 0x8000_0000;
pub(super) const ERRNO: u32 = 0x0005_0000;

pub(super) const OFFSET_NUMBER: u32 = 0;
pub(super) const OFFSET_ARCHITECTURE: u32 = 4;
pub(super) const OFFSET_ARGUMENTS: u32 = 16;

#[cfg(target_arch = "x86_64")]
pub(super) const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
pub(super) const ARCHITECTURE: u32 = 0xc000_00b7;

/// Calls of the x32 ABI carry this bit on x86-64.
pub(super) const X32_BIT: u32 = 0x4000_0000;
/// What happens to one system call.
pub(super) enum Verdict {
    Allow,
    Refuse(i32),
    Check(Vec<Check>),
}

/// Refuses when the argument fails the test. Only the lower half of an argument is looked at, save
/// by [`Test::Above`]: every other argument tested here is an `int` or a flag word below 32 bits for
/// the kernel.
pub(super) struct Check {
    pub(super) when: When,
    pub(super) argument: u32,
    pub(super) mask: u32,
    pub(super) test: Test,
    pub(super) errno: i32,
}

/// In which calls a check is made: always, or when an argument has a value or one of some bits.
pub(super) enum When {
    Always,
    Equal(u32, u32),
    AnyBit(u32, u32),
}

pub(super) enum Test {
    AnyBit,
    OneOf(&'static [u32]),
    NoneOf(&'static [u32]),
    /// All 64 bits, as a number.
    Above(u32),
}

pub(crate) const fn statement(code: u16, k: u32) -> sock_filter {
    sock_filter { code, jt: 0, jf: 0, k }
}

pub(crate) const fn branch(code: u16, k: u32, jt: u8, jf: u8) -> sock_filter {
    sock_filter { code, jt, jf, k }
}

pub(super) fn assemble(table: BTreeMap<c_long, Verdict>) -> Vec<sock_filter> {
    let mut program = vec![
        statement(LOAD_WORD, OFFSET_ARCHITECTURE),
        branch(JUMP_EQUAL, ARCHITECTURE, 1, 0),
        statement(RETURN, KILL_PROCESS),
        statement(LOAD_WORD, OFFSET_NUMBER),
    ];
    if cfg!(target_arch = "x86_64") {
        program.push(branch(JUMP_GREATER_EQUAL, X32_BIT, 0, 1));
        program.push(statement(RETURN, KILL_PROCESS));
    }
    program.extend(tree(&segments(table)));
    program
}

/// Call numbers from `start` to the next segment's, and the code that decides about them.
struct CallRange {
    start: u32,
    code: Vec<sock_filter>,
}

fn segments(table: BTreeMap<c_long, Verdict>) -> Vec<CallRange> {
    let unknown = || vec![statement(RETURN, refusal(libc::ENOSYS))];
    let mut segments: Vec<CallRange> = Vec::new();
    let mut push = |start: u32, code: Vec<sock_filter>| {
        let same = |last: &CallRange| is_same_return(&last.code, &code);
        if !segments.last().is_some_and(same) {
            segments.push(CallRange { start, code });
        }
    };
    let mut next = 0;
    for (number, verdict) in table {
        let Ok(number) = u32::try_from(number) else { continue };
        if number > next {
            push(next, unknown());
        }
        push(number, body(&verdict));
        next = number + 1;
    }
    push(next, unknown());
    segments
}

/// Returns whether both do nothing but return the same.
fn is_same_return(one: &[sock_filter], other: &[sock_filter]) -> bool {
    match (one, other) {
        ([one], [other]) => one.k == other.k,
        _ => false,
    }
}

/// Returns code that finds the segment of the loaded call number; every path of it ends in a
/// return.
fn tree(segments: &[CallRange]) -> Vec<sock_filter> {
    let (left, right) = segments.split_at(segments.len() / 2);
    let Some(pivot) = right.first() else { return vec![statement(RETURN, KILL_PROCESS)] };
    if left.is_empty() {
        return pivot.code.clone();
    }
    let (left, right) = (tree(left), tree(right));
    // One comparison that jumps by itself where it can: the kernel compiles every instruction of a
    // filter each time it is installed.
    let mut code = match u8::try_from(left.len()) {
        Ok(skip) => vec![branch(JUMP_GREATER_EQUAL, pivot.start, skip, 0)],
        Err(_) => {
            let skip = u32::try_from(left.len()).unwrap_or(u32::MAX);
            vec![branch(JUMP_GREATER_EQUAL, pivot.start, 0, 1), statement(JUMP, skip)]
        }
    };
    code.extend(left);
    code.extend(right);
    code
}

fn body(verdict: &Verdict) -> Vec<sock_filter> {
    match verdict {
        Verdict::Allow => vec![statement(RETURN, ALLOW)],
        Verdict::Refuse(errno) => vec![statement(RETURN, refusal(*errno))],
        Verdict::Check(checks) => {
            let mut code: Vec<sock_filter> = checks.iter().flat_map(check_code).collect();
            code.push(statement(RETURN, ALLOW));
            code
        }
    }
}

fn check_code(check: &Check) -> Vec<sock_filter> {
    let mut code = vec![statement(LOAD_WORD, OFFSET_ARGUMENTS + 8 * check.argument)];
    match check.test {
        Test::AnyBit => code.push(branch(JUMP_ANY_BIT, check.mask, 0, 1)),
        Test::OneOf(values) => {
            code.push(statement(AND, check.mask));
            code.extend(jump_if_equal(values));
            code.push(statement(JUMP, 1));
        }
        Test::NoneOf(values) => {
            code.push(statement(AND, check.mask));
            code.extend(jump_if_equal(values));
        }
        Test::Above(most) => code = above(check.argument, most),
    }
    code.push(statement(RETURN, refusal(check.errno)));
    let skip = u32::try_from(code.len()).unwrap_or(u32::MAX);
    let (argument, test) = match check.when {
        When::Always => return code,
        When::Equal(argument, value) => (argument, branch(JUMP_EQUAL, value, 1, 0)),
        When::AnyBit(argument, mask) => (argument, branch(JUMP_ANY_BIT, mask, 1, 0)),
    };
    let load = statement(LOAD_WORD, OFFSET_ARGUMENTS + 8 * argument);
    let mut guarded = vec![load, test, statement(JUMP, skip)];
    guarded.extend(code);
    guarded
}

/// Returns comparisons that reach the one instruction that follows them when the argument is larger.
fn above(argument: u32, most: u32) -> Vec<sock_filter> {
    let low = OFFSET_ARGUMENTS + 8 * argument;
    vec![
        statement(LOAD_WORD, low + 4),
        branch(JUMP_EQUAL, 0, 0, 2),
        statement(LOAD_WORD, low),
        branch(JUMP_GREATER, most, 0, 1),
    ]
}

/// Returns comparisons that, when one is equal, jump over the one instruction that follows them.
fn jump_if_equal(values: &[u32]) -> impl Iterator<Item = sock_filter> {
    let count = values.len();
    values.iter().enumerate().map(move |(index, value)| {
        branch(JUMP_EQUAL, *value, u8::try_from(count - index).unwrap_or(u8::MAX), 0)
    })
}

pub(super) fn refusal(errno: i32) -> u32 {
    ERRNO | (errno as u32 & 0xffff)
}

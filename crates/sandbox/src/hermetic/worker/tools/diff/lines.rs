//! The lines in which two texts differ, and how they are printed.

/// Lines taken out of the left text and put in from the right one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Change {
    /// The first line on the left, and how many.
    pub left: (usize, usize),
    /// The first line on the right, and how many.
    pub right: (usize, usize),
}

/// Beyond so many lines in and out, what lies between is shown as one change: the search would
/// take memory with the square of it.
const MOST_STEPS: isize = 3_000;

/// Returns the fewest changes that turn one list of lines into another.
///
/// Myers' algorithm, over the part between what both start and end with.
pub(super) fn changes(left: &[Vec<u8>], right: &[Vec<u8>]) -> Vec<Change> {
    let start = left.iter().zip(right).take_while(|(a, b)| a == b).count();
    let rest = left.len().min(right.len()) - start;
    let end =
        left.iter().rev().zip(right.iter().rev()).take(rest).take_while(|(a, b)| a == b).count();
    let old = left.get(start..left.len() - end).unwrap_or_default();
    let new = right.get(start..right.len() - end).unwrap_or_default();
    let mut changes: Vec<Change> = Vec::new();
    let (mut x, mut y) = (0, 0);
    for (keep_x, keep_y) in kept(old, new).into_iter().chain([(old.len(), new.len())]) {
        if keep_x > x || keep_y > y {
            changes.push(Change { left: (start + x, keep_x - x), right: (start + y, keep_y - y) });
        }
        (x, y) = (keep_x + 1, keep_y + 1);
    }
    changes
}

/// Returns the pairs of lines that stay, in order.
fn kept(old: &[Vec<u8>], new: &[Vec<u8>]) -> Vec<(usize, usize)> {
    let (n, m) = (old.len(), new.len());
    let most = n + m;
    let size = 2 * most + 2;
    let mut furthest = vec![0_usize; size];
    let mut trace: Vec<Vec<usize>> = Vec::new();
    let width = |d: isize| usize::try_from(d).unwrap_or(0);
    let at = |k: isize| usize::try_from(k + most as isize).unwrap_or(0);
    for d in 0..=(most as isize).min(MOST_STEPS) {
        // Only the diagonals that can have been reached are kept.
        let reached = furthest.get(most - width(d)..=most + width(d));
        trace.push(reached.unwrap_or_default().to_vec());
        for k in (-d..=d).step_by(2) {
            let reach = |k: isize| furthest.get(at(k)).copied().unwrap_or(0);
            let mut x = if k == -d || (k != d && reach(k - 1) < reach(k + 1)) {
                reach(k + 1)
            } else {
                reach(k - 1) + 1
            };
            let mut y = usize::try_from(x as isize - k).unwrap_or(0);
            while x < n && y < m && old.get(x) == new.get(y) {
                (x, y) = (x + 1, y + 1);
            }
            if let Some(slot) = furthest.get_mut(at(k)) {
                *slot = x;
            }
            if x >= n && y >= m {
                return walk_back(&trace, (n, m));
            }
        }
    }
    Vec::new()
}

fn walk_back(trace: &[Vec<usize>], (mut x, mut y): (usize, usize)) -> Vec<(usize, usize)> {
    let mut kept = Vec::new();
    for (d, furthest) in trace.iter().enumerate().rev() {
        let d = d as isize;
        let k = x as isize - y as isize;
        let at = |k: isize| usize::try_from(k + d).unwrap_or(usize::MAX);
        let reach = |k: isize| furthest.get(at(k)).copied().unwrap_or(0);
        let before = if k == -d || (k != d && reach(k - 1) < reach(k + 1)) { k + 1 } else { k - 1 };
        let from_x = if d == 0 { 0 } else { reach(before) };
        let from_y =
            if d == 0 { 0 } else { usize::try_from(from_x as isize - before).unwrap_or(0) };
        while x > from_x && y > from_y {
            (x, y) = (x - 1, y - 1);
            kept.push((x, y));
        }
        (x, y) = (from_x, from_y);
    }
    kept.reverse();
    kept
}

/// A text in lines, as shown.
pub(super) struct Text {
    /// The lines without their ends.
    pub lines: Vec<Vec<u8>>,
    /// Whether the last line has no end.
    pub is_open: bool,
}

impl Text {
    pub(super) fn new(bytes: &[u8]) -> Self {
        let is_open = bytes.last().is_some_and(|last| *last != b'\n');
        let mut lines: Vec<Vec<u8>> =
            bytes.split(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
        if !is_open {
            lines.pop();
        }
        Self { lines, is_open }
    }

    fn print(&self, mark: &[u8], lines: std::ops::Range<usize>, out: &mut Vec<u8>) {
        for at in lines {
            let Some(line) = self.lines.get(at) else { continue };
            out.extend(mark);
            out.extend(line);
            out.push(b'\n');
            if self.is_open && at + 1 == self.lines.len() {
                out.extend(b"\\ No newline at end of file\n");
            }
        }
    }
}

/// Prints changes as `ed` names them: `2,3c2`.
pub(super) fn normal(left: &Text, right: &Text, changes: &[Change]) -> Vec<u8> {
    let mut out = Vec::new();
    for Change { left: (x, gone), right: (y, come) } in changes {
        let range = |start: usize, count: usize| match count {
            0 => start.to_string(),
            1 => (start + 1).to_string(),
            _ => format!("{},{}", start + 1, start + count),
        };
        let letter = match (gone, come) {
            (0, _) => 'a',
            (_, 0) => 'd',
            _ => 'c',
        };
        out.extend(format!("{}{letter}{}\n", range(*x, *gone), range(*y, *come)).bytes());
        left.print(b"< ", *x..x + gone, &mut out);
        if letter == 'c' {
            out.extend(b"---\n");
        }
        right.print(b"> ", *y..y + come, &mut out);
    }
    out
}

/// Prints changes with so many lines around them.
pub(super) fn unified(left: &Text, right: &Text, changes: &[Change], around: usize) -> Vec<u8> {
    let mut out = Vec::new();
    let mut rest = changes;
    while !rest.is_empty() {
        let near = |pair: &[Change]| match pair {
            [a, b] => b.left.0 - (a.left.0 + a.left.1) <= 2 * around,
            _ => false,
        };
        let count = 1 + rest.windows(2).take_while(|pair| near(pair)).count();
        let (hunk, following) = rest.split_at_checked(count).unwrap_or((rest, &[]));
        rest = following;
        let (Some(first), Some(last)) = (hunk.first(), hunk.last()) else { break };
        let before = around.min(first.left.0);
        let (from_x, from_y) = (first.left.0 - before, first.right.0 - before);
        let end = last.left.0 + last.left.1;
        let after = around.min(left.lines.len() - end);
        let (to_x, to_y) = (end + after, last.right.0 + last.right.1 + after);
        let range = |start: usize, count: usize| match count {
            0 => format!("{start},0"),
            1 => (start + 1).to_string(),
            _ => format!("{},{count}", start + 1),
        };
        let title =
            format!("@@ -{} +{} @@\n", range(from_x, to_x - from_x), range(from_y, to_y - from_y));
        out.extend(title.bytes());
        let mut at = from_x;
        for Change { left: (x, gone), right: (y, come) } in hunk {
            left.print(b" ", at..*x, &mut out);
            left.print(b"-", *x..x + gone, &mut out);
            right.print(b"+", *y..y + come, &mut out);
            at = x + gone;
        }
        left.print(b" ", at..to_x, &mut out);
    }
    out
}

//! Pages of lists that change while they are read: a page names the last row it told, and the next
//! one goes on behind it, whether that row still exists or not.

use crate::doors::Sandbox;

/// One page of a sorted list.
pub(crate) struct Page<'a> {
    /// How many rows it has at most.
    pub(crate) limit: usize,
    /// What the page before it said is next.
    pub(crate) after: Option<&'a str>,
    /// Which rows come first.
    pub(crate) order: Order,
}

/// Which sandboxes come first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// Those made last.
    Newest,
    /// Those made first.
    Oldest,
}

impl Page<'_> {
    /// Returns the rows of this page, and what names the next one, if there is more. The list is
    /// sorted by when sandboxes were made, in that order.
    pub(crate) fn of<'b>(&self, all: &'b [Sandbox]) -> (Vec<&'b Sandbox>, Option<String>) {
        let is_behind = |sandbox: &&Sandbox| match self.after {
            None => true,
            Some(after) if self.order == Order::Newest => place(sandbox).as_str() < after,
            Some(after) => place(sandbox).as_str() > after,
        };
        let mut rows: Vec<&Sandbox> =
            all.iter().filter(is_behind).take(self.limit.saturating_add(1)).collect();
        let has_more = rows.len() > self.limit;
        rows.truncate(self.limit);
        let next = rows.last().filter(|_| has_more).map(|sandbox| place(sandbox));
        (rows, next)
    }
}

/// Returns where a sandbox stands; earlier ones stand before later ones.
fn place(sandbox: &Sandbox) -> String {
    format!("{:016x}-{}", sandbox.created_at.unix_ms(), sandbox.id)
}

//! Lists of runs without their chains, contracts and requests: what a page of many needs.

use rusqlite::{Row, params_from_iter};
use warrant_protocol::{RunId, RunState, Timestamp};

use super::read::{id_column, state_column};
use super::states::in_state;
use super::steps::timestamp_column;
use super::{Store, StoreError};

/// A run in a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SummaryRow {
    /// Its place in the order of arrival; the cursor of pages.
    pub seq: u64,
    /// Its name.
    pub id: RunId,
    /// Where it stands.
    pub state: RunState,
    /// Which agent.
    pub agent_kind: String,
    /// Where it runs.
    pub pool: String,
    /// The task.
    pub prompt: String,
    /// Who asked, as `human:alice`.
    pub requested_by: String,
    /// When it came.
    pub created_at: Timestamp,
    /// When it last changed.
    pub updated_at: Timestamp,
    /// What people must agree to, as a JSON list of names.
    pub requirements: String,
    /// Where it goes on from, as JSON text.
    pub continuation: Option<String>,
    /// Whether it has a receipt.
    pub has_receipt: bool,
}

/// Which runs are wanted in a list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListingFilter {
    /// Only those in one of these states; all when empty.
    pub states: Vec<RunState>,
    /// Only those of this pool.
    pub pool: Option<String>,
    /// Only those of this requester, as `human:alice`.
    pub requested_by: Option<String>,
    /// Only those of this agent.
    pub agent_kind: Option<String>,
    /// Only those that wait for approval, and those that this principal asked for or approved.
    pub readable_by: Option<String>,
    /// Only those before this cursor.
    pub before: Option<u64>,
    /// At most this many.
    pub limit: u32,
}

/// A page of a list, newest first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listing {
    /// The runs.
    pub runs: Vec<SummaryRow>,
    /// The cursor of the next page, if there may be one.
    pub next: Option<u64>,
}

impl Store {
    /// Returns a page of runs, newest first.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot be read.
    pub fn page(&self, filter: &ListingFilter) -> Result<Listing, StoreError> {
        let limit = filter.limit.clamp(1, 1000);
        let (chosen, values) = choice(filter, limit);
        let sql = format!(
            "SELECT seq, id, state, agent_kind, pool, prompt, requested_by, created_at,
               updated_at,
               (SELECT json_group_array(value ->> 'name')
                  FROM json_each(judgment, '$.requirements')),
               request -> '$.continuation',
               EXISTS (SELECT 1 FROM receipts WHERE receipts.run = runs.seq)
             FROM runs JOIN papers ON papers.run = runs.seq
             WHERE seq IN ({chosen}) ORDER BY seq DESC"
        );
        let runs: Vec<SummaryRow> = self.read_aside(|connection| {
            let mut statement = connection.prepare_cached(&sql)?;
            let rows = statement.query_map(params_from_iter(values), summary_row)?;
            Ok(rows.collect::<Result<_, _>>()?)
        })?;
        let is_full = runs.len() as u64 == u64::from(limit);
        let next = runs.last().filter(|_| is_full).map(|run| run.seq);
        Ok(Listing { runs, next })
    }
}

/// Returns which runs are on the page, as a query for their places and its values.
///
/// The places are found by indexes alone, whatever the list is narrowed by, and only the rows of
/// the page are read. Several states are as many short lists: one over all of them would have to
/// be sorted whole.
fn choice(filter: &ListingFilter, limit: u32) -> (String, Vec<rusqlite::types::Value>) {
    let mut narrowed = String::new();
    let mut texts: Vec<rusqlite::types::Value> = Vec::new();
    for (column, wanted) in [
        ("pool", &filter.pool),
        ("requested_by", &filter.requested_by),
        ("agent_kind", &filter.agent_kind),
    ] {
        if let Some(wanted) = wanted {
            narrowed.push_str(&format!(" AND {column} = ?"));
            texts.push(wanted.clone().into());
        }
    }
    if let Some(reader) = &filter.readable_by {
        let is_awaiting = in_state(RunState::AwaitingApproval);
        narrowed.push_str(&format!(
            " AND seq IN (SELECT seq FROM runs WHERE {is_awaiting}
                UNION SELECT run FROM approvals WHERE approver = ?
                UNION SELECT seq FROM runs WHERE requested_by = ?)",
        ));
        texts.push(reader.clone().into());
        texts.push(reader.clone().into());
    }
    let before = filter.before.unwrap_or(u64::MAX).min(i64::MAX as u64) as i64;
    let one = |state: Option<&RunState>| {
        let by_state = if state.is_some() { " AND state = ?" } else { "" };
        let sql = format!(
            "SELECT seq FROM runs WHERE seq < ?{by_state}{narrowed} ORDER BY seq DESC LIMIT ?"
        );
        let mut values: Vec<rusqlite::types::Value> = vec![before.into()];
        values.extend(state.map(|state| state.as_str().to_owned().into()));
        values.extend(texts.iter().cloned());
        values.push(i64::from(limit).into());
        (sql, values)
    };
    match filter.states.as_slice() {
        [] => one(None),
        [state] => one(Some(state)),
        several => {
            let (lists, values): (Vec<String>, Vec<Vec<_>>) =
                several.iter().map(|state| one(Some(state))).unzip();
            let lists: Vec<String> =
                lists.iter().map(|list| format!("SELECT seq FROM ({list})")).collect();
            let sql = format!("{} ORDER BY seq DESC LIMIT ?", lists.join(" UNION ALL "));
            let mut values = values.concat();
            values.push(i64::from(limit).into());
            (sql, values)
        }
    }
}

fn summary_row(row: &Row<'_>) -> rusqlite::Result<SummaryRow> {
    Ok(SummaryRow {
        seq: row.get(0)?,
        id: id_column(row, 1)?,
        state: state_column(row, 2)?,
        agent_kind: row.get(3)?,
        pool: row.get(4)?,
        prompt: row.get(5)?,
        requested_by: row.get(6)?,
        created_at: timestamp_column(row, 7)?,
        updated_at: timestamp_column(row, 8)?,
        requirements: row.get(9)?,
        continuation: row.get(10)?,
        has_receipt: row.get(11)?,
    })
}

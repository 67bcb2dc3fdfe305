//! Whether any enrolled runner can serve a run; whoever submits one is told when none can.

use std::collections::BTreeSet;
use std::sync::Arc;

use warrant_protocol::wire::RunnerAbilities;
use warrant_protocol::{Isolation, RunRequest};

use super::error::HttpError;
use super::registry::Runner;
use super::service::PlaneService;
use super::waiting::Wanted;

impl PlaneService {
    /// Refuses a request for a tier that no runner of this product makes, or none of those that
    /// are enrolled in its pool. A pool without runners gets its first one later.
    pub(super) fn check_offered(&self, request: &RunRequest) -> Result<(), HttpError> {
        let (tier, pool) = (request.isolation.unwrap_or(Isolation::Process), &request.pool);
        let runners = self.runners_of(pool.as_str());
        let all: Vec<RunnerAbilities> = runners.iter().map(|runner| runner.abilities()).collect();
        let makes = |runner: &RunnerAbilities| {
            runner.isolations.as_ref().is_none_or(|tiers| tiers.contains(&tier))
        };
        if tier.is_offered() && (all.is_empty() || all.iter().any(makes)) {
            return Ok(());
        }
        let offered = names(all.iter().flat_map(tiers));
        let offered = match offered.is_empty() {
            true => names(Isolation::ALL.into_iter().filter(|tier| tier.is_offered())),
            false => offered,
        };
        Err(HttpError::bad_request(format!(
            "isolation: no runner of pool {pool} offers {tier}; use one of {offered}, or start one \
             that does with `warrant runner start --pool {pool}`"
        )))
    }

    /// Returns why no enrolled runner can serve a run, and what would help; nothing when one can.
    pub(super) fn unserved(&self, wanted: &Wanted<'_>) -> Option<String> {
        let pool = wanted.pool;
        let runners = self.runners_of(pool);
        let abilities: Vec<RunnerAbilities> =
            runners.iter().map(|runner| runner.abilities()).collect();
        let fits =
            |all: &RunnerAbilities| all.fit(wanted.isolation, wanted.agent_kind, wanted.posture);
        if abilities.iter().any(fits) {
            return None;
        }
        let told = if abilities.is_empty() {
            format!(
                "no runner is enrolled in pool {pool}; start one with `warrant runner start \
                 --pool {pool}`"
            )
        } else {
            format!("no runner of pool {pool} {}", lacking(&abilities, wanted))
        };
        Some(format!("{told}. The run waits until one is there"))
    }

    fn runners_of(&self, pool: &str) -> Vec<Arc<Runner>> {
        let mut all = self.registry.runners();
        all.retain(|runner| runner.pool == pool && !runner.is_revoked);
        all
    }
}

/// Says what none of these runners has: the tier, the agent, the posture, or all of it together.
fn lacking(all: &[RunnerAbilities], wanted: &Wanted<'_>) -> String {
    let Wanted { isolation, agent_kind, posture, .. } = wanted;
    let makes = |runner: &&RunnerAbilities| {
        runner
            .isolations
            .as_ref()
            .is_none_or(|tiers| tiers.iter().any(|t| t.as_str() == *isolation))
    };
    let starts = |runner: &&RunnerAbilities| {
        runner.agent_kinds.as_ref().is_none_or(|kinds| kinds.iter().any(|kind| kind == agent_kind))
    };
    if !all.iter().any(|runner| makes(&runner)) {
        let offered = names(all.iter().flat_map(tiers));
        return format!("offers isolation {isolation}; they offer {offered}");
    }
    if !all.iter().filter(makes).any(|runner| starts(&runner)) {
        let offered = names(all.iter().filter_map(|one| one.agent_kinds.clone()).flatten());
        return format!("starts the agent {agent_kind} in {isolation}; they start {offered}");
    }
    let missing = |runner: &RunnerAbilities| -> Vec<String> {
        let holds = runner.posture.as_deref().unwrap_or(posture);
        posture.iter().filter(|name| !holds.contains(name)).cloned().collect()
    };
    let fitting = all.iter().filter(makes).filter(starts);
    let least = fitting.map(missing).min_by_key(Vec::len).unwrap_or_default();
    format!("holds the demanded posture in {isolation}; the closest lacks {}", least.join(", "))
}

fn tiers(runner: &RunnerAbilities) -> Vec<Isolation> {
    runner.isolations.clone().unwrap_or_default()
}

fn names(all: impl IntoIterator<Item = impl ToString>) -> String {
    let names: BTreeSet<String> = all.into_iter().map(|name| name.to_string()).collect();
    names.into_iter().collect::<Vec<_>>().join(", ")
}

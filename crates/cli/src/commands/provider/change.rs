//! A change of policy about one provider: one member of the document, with who and when.

use anyhow::{Context as _, bail};
use serde_json::{Value, json};
use warrant_govern::{Desk, PolicyFiles, policy_folder, principal, write_policy};
use warrant_plane::random;
use warrant_plane::store::PolicyRow;
use warrant_policy::snapshot::PolicySnapshot;
use warrant_protocol::{Digest, Evidence, Isolation, VersionRange};

use crate::commands::settings::json::with_member;

/// What a person says about a provider.
pub(crate) enum ProviderChange {
    /// This component counts with this evidence.
    Accept {
        /// Which one.
        component: String,
        /// The weakest that counts.
        evidence: Evidence,
    },
    /// These versions count.
    Pin(VersionRange),
}

/// What became of a change.
pub(crate) struct Changed {
    /// The policy in force.
    pub(crate) policy: Digest,
    /// Whether it is another one than before.
    pub(crate) is_new: bool,
}

/// Puts a policy with the change in force, in the name of whoever runs this.
pub(crate) fn make(
    desk: &Desk,
    isolation: Isolation,
    change: &ProviderChange,
) -> anyhow::Result<Changed> {
    let folder = policy_folder(desk.plane().home().root());
    let files = PolicyFiles::read(&folder)?;
    let before = PolicySnapshot::load(files.text())
        .context("the policy's files are broken; see warrant policy check")?;
    let Some(document) = changed_document(&before, (isolation, change), &files.document)? else {
        return Ok(Changed { policy: before.hash(), is_new: false });
    };
    let files = PolicyFiles { document, ..files };
    let after = PolicySnapshot::load(files.text()).context("refused; the policy in force stays")?;
    let content =
        json!({"document": files.document, "rules": files.rules, "examples": files.examples});
    desk.plane().store().set_policy(PolicyRow {
        hash: after.hash(),
        body: content.to_string(),
        set_by: principal().label(),
        created_at: random::now()?,
    })?;
    write_policy(desk.plane().home().root(), &files)?;
    Ok(Changed { policy: after.hash(), is_new: true })
}

/// Returns the document with the change; nothing when it says that already.
fn changed_document(
    before: &PolicySnapshot,
    (isolation, change): (Isolation, &ProviderChange),
    document: &str,
) -> anyhow::Result<Option<String>> {
    let author = json!({"by": principal().label(), "at": random::now()?.to_string()});
    let known = before.controls().provider(isolation).cloned().unwrap_or_default();
    let provider = ["controls", "providers", isolation.as_str()];
    match change {
        ProviderChange::Accept { component, evidence } => {
            if component.trim().is_empty() {
                bail!("the component is empty; name one that a refusal named");
            }
            if known.accepted.get(component).is_some_and(|one| one.evidence <= *evidence) {
                return Ok(None);
            }
            let path = [&provider[..], &["accepted", component]].concat();
            let value = with(author, "evidence", json!(evidence));
            with_member(document, &path, &value).map(Some)
        }
        ProviderChange::Pin(version) => {
            if known.versions.iter().any(|one| one.version == *version) {
                return Ok(None);
            }
            let listed = |one: &warrant_policy::controls::PinnedVersion| json!({"version": one.version, "by": one.by, "at": one.at.to_string()});
            let mut versions: Vec<Value> = known.versions.iter().map(listed).collect();
            versions.push(with(author, "version", json!(version)));
            let path = [&provider[..], &["versions"]].concat();
            with_member(document, &path, &json!(versions)).map(Some)
        }
    }
}

fn with(mut object: Value, name: &str, value: Value) -> Value {
    if let Some(members) = object.as_object_mut() {
        members.insert(name.to_owned(), value);
    }
    object
}

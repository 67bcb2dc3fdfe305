//! Decides, from what an overlay touches, what goes through the gate. Pure.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::io;
use std::time::{Duration, UNIX_EPOCH};

use super::{ExportOptions, ExportPlan, Gated, NotExported};
use crate::gate::classify;
use crate::overlay::Scanned;
use crate::root::Node;
use crate::{GateClass, TreePath, Verdict};

/// Returns the directories that are a bare repository once the overlay is exported.
///
/// SECURITY: git takes a directory with `HEAD`, `objects` and `refs` for a repository without any
/// `.git`, and then runs what its config says, as soon as somebody stands in it.
pub(super) fn new_repositories(
    rows: &[Scanned],
    below: impl Fn(&TreePath) -> io::Result<Node>,
) -> io::Result<BTreeSet<TreePath>> {
    let after: HashMap<&TreePath, Node> = rows.iter().map(|row| (&row.path, row.after)).collect();
    let mut found = BTreeSet::new();
    let is_part = |name: &[u8]| {
        let name = name.to_ascii_lowercase();
        matches!(
            name.as_slice(),
            b"head" | b"objects" | b"refs" | b"config" | b"hooks" | b"commondir"
        )
    };
    for row in rows.iter().filter(|row| row.after != Node::Absent && is_part(row.path.name())) {
        let Some(directory) = row.path.parent() else { continue };
        if directory.git_part().is_some() || found.contains(&directory) {
            continue;
        }
        let has = |name: &[u8]| -> io::Result<bool> {
            let path = directory.join(name);
            let node = match after.get(&path) {
                Some(node) => *node,
                None => below(&path)?,
            };
            Ok(node != Node::Absent)
        };
        if has(b"HEAD")? && (has(b"objects")? && has(b"refs")? || has(b"commondir")?) {
            found.insert(directory);
        }
    }
    Ok(found)
}

/// What is known of the rows before they are judged.
#[derive(Debug)]
pub(super) struct Context<'a> {
    /// Directories that are a bare repository once the overlay is exported.
    pub(super) repositories: BTreeSet<TreePath>,
    /// Links that lead out of the workspace.
    pub(super) outward: HashMap<TreePath, GateClass>,
    /// Held paths the person has released.
    pub(super) released: HashSet<&'a TreePath>,
}

/// Sorts every row: exported, named, held, refused.
pub(super) fn judge(
    rows: Vec<Scanned>,
    context: &Context<'_>,
    options: &ExportOptions<'_>,
) -> ExportPlan {
    let mut plan = ExportPlan {
        rows: Vec::new(),
        gated: Vec::new(),
        not_exported: Vec::new(),
        stripped: Vec::new(),
        conflicts: Vec::new(),
        git: crate::gitstate::GitPlan::default(),
    };
    let started_at = options.started_at.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    let is_newer = |ctime: (i64, u32)| {
        let time = u64::try_from(ctime.0).map(|seconds| Duration::new(seconds, ctime.1));
        started_at.is_some_and(|started_at| time.is_ok_and(|time| time > started_at))
    };
    for row in rows {
        let path = row.path.clone();
        if let Node::File(facts) | Node::Link(facts) = row.before
            && is_newer(facts.ctime)
        {
            plan.conflicts.push(path);
            continue;
        }
        let is_new = matches!(row.after, Node::File(_) | Node::Link(_));
        match row.after {
            Node::Special(kind) => {
                plan.not_exported.push(NotExported::Special { path, kind });
                continue;
            }
            Node::File(facts) if facts.bytes > options.limits.file_bytes => {
                plan.not_exported.push(NotExported::TooLarge { path, bytes: facts.bytes });
                continue;
            }
            Node::File(facts) if facts.permissions & 0o7000 != 0 => {
                plan.stripped.push(path.clone())
            }
            _ => {}
        }
        let class = class_of(&row, context);
        // What is deleted executes no more; only inside git directories that matters too.
        let class = class.filter(|_| is_new || path.git_part().is_some());
        let judged = match class {
            None if !is_new => None,
            class => options.policy.judge(&path, class),
        };
        if let Some((class, verdict)) = judged {
            let is_released = verdict == Verdict::Hold && context.released.contains(&path);
            let verdict = if is_released { Verdict::Flag } else { verdict };
            plan.gated.push(Gated { path, class, verdict });
            if verdict != Verdict::Flag {
                continue;
            }
        }
        plan.rows.push(row);
    }
    drop_orphans(&mut plan);
    plan
}

fn class_of(row: &Scanned, context: &Context<'_>) -> Option<GateClass> {
    let above = std::iter::successors(row.path.parent(), TreePath::parent);
    if above.into_iter().any(|path| context.repositories.contains(&path)) {
        return Some(GateClass::NewRepository);
    }
    if let (Node::Directory(_), Node::Directory(_)) = (row.before, row.after) {
        return None;
    }
    classify(&row.path).or_else(|| match row.after {
        // SECURITY: a link named `.vscode` makes tasks of files that have harmless names.
        Node::Link(_) => {
            let inside: [&[u8]; 3] = [b"x", b"workflows/x", b"config.toml"];
            let by_name = inside.iter().find_map(|name| classify(&row.path.join(name)));
            by_name.or_else(|| context.outward.get(&row.path).copied())
        }
        _ => None,
    })
}

/// Drops rows whose directory was kept out, and directories that were to make room for those.
fn drop_orphans(plan: &mut ExportPlan) {
    let kept_out: HashSet<TreePath> = plan
        .gated
        .iter()
        .filter(|gated| gated.verdict != Verdict::Flag)
        .map(|gated| gated.path.clone())
        .collect();
    let is_orphan = |path: &TreePath| {
        std::iter::successors(path.parent(), TreePath::parent)
            .any(|above| kept_out.contains(&above))
    };
    plan.rows.retain(|row| !is_orphan(&row.path));
    // A directory whose content must stay cannot go.
    let stays: HashSet<TreePath> = kept_out
        .iter()
        .flat_map(|path| std::iter::successors(path.parent(), TreePath::parent))
        .collect();
    plan.rows.retain(|row| matches!(row.after, Node::Directory(_)) || !stays.contains(&row.path));
}

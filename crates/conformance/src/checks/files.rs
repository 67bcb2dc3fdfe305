//! The workspace: read-only means that, an overlay leaves it alone, and masks hide.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use warrant_sandbox::WorkspaceAccess;

use super::Check;
use crate::lab::{Attempt, Broken, CANARY, Finding, Lab, Passed, ensure};
use crate::sinks::Manner;
use crate::subject::WorkspaceKind;
use crate::tier::Level;

/// Tries every way to change a workspace.
const CHANGE_EVERYTHING: &str = "echo new > old; echo more >> old; rm old; mv old moved; \
     mkdir made; : > made-file; ln -s old link; ln old hard; chmod 777 old; touch -d @0 old; \
     rm -r deep; mv deep elsewhere; echo new > deep/file; cp old copy; truncate -s 0 old; \
     rmdir deep; exit 0";

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "files.read-only",
        level: Level::L2,
        name: "a read-only workspace takes no change",
        run: read_only,
    },
    Check {
        id: "files.overlay",
        level: Level::L2,
        name: "an overlay takes changes and leaves the workspace as it was",
        run: overlay,
    },
    Check {
        id: "files.masks",
        level: Level::L2,
        name: "a masked secret cannot be read, under no other name either",
        run: masks,
    },
];

fn read_only(lab: &Lab<'_>) -> Finding {
    let untouched = stays_untouched(lab, WorkspaceAccess::ReadOnly)?;
    Ok(untouched)
}

fn overlay(lab: &Lab<'_>) -> Finding {
    let untouched = stays_untouched(lab, WorkspaceAccess::Overlay)?;
    if untouched != Passed::Held {
        return Ok(untouched);
    }
    let mut invocation = lab.script("echo new > file && cat file && cat old");
    invocation.files.access = WorkspaceAccess::Overlay;
    let ran = lab.run_invocation(invocation)?;
    ensure(ran.stdout == lab.arriving(b"new\noriginal"), || {
        format!("inside it reads `{}`", ran.text())
    })?;
    let has_layer = ran.report.upper.is_some() || !lab.is_shared();
    ensure(has_layer, || "what was written is handed to nobody".to_owned())?;
    Ok(Passed::Held)
}

fn stays_untouched(lab: &Lab<'_>, access: WorkspaceAccess) -> Finding {
    lab.put("old", "original")?;
    lab.put("deep/file", "original")?;
    let before = tree(&lab.workspace())?;
    let mut invocation = lab.script(CHANGE_EVERYTHING);
    invocation.files.access = access;
    let refused = match lab.attempt(invocation, Manner::Keep)? {
        Attempt::Ran(_) => None,
        Attempt::Refused(refusal) => Some(refusal),
        Attempt::Failed(what) => return Err(Broken(what)),
    };
    let after = tree(&lab.workspace())?;
    let differing: Vec<_> = before
        .keys()
        .chain(after.keys())
        .filter(|name| before.get(*name) != after.get(*name))
        .collect();
    ensure(differing.is_empty(), || format!("the host's workspace changed: {differing:?}"))?;
    if let Some(refusal) = refused {
        return Ok(Passed::Moot(format!("refused before anything ran ({refusal})")));
    }
    if lab.subject.capabilities.workspace == WorkspaceKind::Memory {
        return Ok(Passed::HeldAs("every workspace is in memory".to_owned()));
    }
    Ok(Passed::Held)
}

/// Returns every entry below a directory: its content, mode and links.
fn tree(root: &Path) -> Result<BTreeMap<String, String>, Broken> {
    use std::os::unix::fs::MetadataExt;
    let mut found = BTreeMap::new();
    let mut left = vec![root.to_owned()];
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(&directory)? {
            let path = entry?.path();
            let metadata = fs::symlink_metadata(&path)?;
            let content = match metadata.is_file() {
                true => String::from_utf8_lossy(&fs::read(&path)?).into_owned(),
                false => String::new(),
            };
            let told = format!("{:o} {} {content}", metadata.mode(), metadata.mtime());
            if metadata.is_dir() {
                left.push(path.clone());
            }
            found.insert(path.to_string_lossy().into_owned(), told);
        }
    }
    Ok(found)
}

fn masks(lab: &Lab<'_>) -> Finding {
    if !lab.open()?.probe().enforces("files.masks") {
        return Ok(Passed::Moot("the posture does not claim files.masks".to_owned()));
    }
    let secret = lab.put(".env", CANARY)?;
    lab.put("deep/er/.ENV", CANARY)?;
    lab.put("open", "open")?;
    fs::hard_link(secret, lab.workspace().join("alias"))?;
    let script = "cat open; cat .env; cat ./deep/../.env; cat deep/er/.ENV; cat alias; \
         cp .env copy; cat copy; mv .env moved; cat moved; ln .env linked; cat linked; \
         mv deep shallow; cat shallow/er/.ENV; grep -r CANARY .; head -c 99 < .env; \
         tail -n 9 .env; ln -s .env soft; cat soft; exit 0";
    let mut invocation = lab.script(script);
    invocation.files.masks = vec![".env".to_owned()];
    let ran = lab.run_invocation(invocation)?;
    let said = format!("{}{}", ran.text(), String::from_utf8_lossy(&ran.stderr));
    ensure(!said.contains(CANARY), || "the masked secret was read".to_owned())?;
    if lab.subject.capabilities.workspace == WorkspaceKind::Memory {
        return Ok(Passed::HeldAs("no file of the host is seen at all".to_owned()));
    }
    ensure(said.starts_with("open"), || format!("a file without a mask reads `{said}`"))?;
    let kept = fs::read_to_string(lab.workspace().join(".env")).unwrap_or_default();
    ensure(kept == CANARY, || "the masked secret was destroyed".to_owned())?;
    Ok(Passed::Held)
}

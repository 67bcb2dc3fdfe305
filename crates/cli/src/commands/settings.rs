//! Settings files of other people's programs: the change is planned, shown, agreed to, and made in
//! one step. A file that we cannot read as what it should be is left alone.

pub(super) mod json;

use std::fs;
use std::io::{self, BufRead as _, IsTerminal as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, fchown};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow, bail};
use serde_json::{Map, Value, json};

use crate::args::Install;
use crate::exit::{Exit, Misuse};
use crate::{toml, ui};

/// What a settings file is written in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    Json,
    Toml,
}

/// A planned change of one file.
#[derive(Debug)]
pub(crate) struct Change {
    path: PathBuf,
    before: Option<String>,
    after: String,
}

impl Change {
    /// Plans a change; nothing is written.
    pub(crate) fn plan(
        path: &Path,
        format: Format,
        edit: impl FnOnce(&str) -> anyhow::Result<String>,
    ) -> anyhow::Result<Self> {
        // A link is followed once, here, so that the file it names is the one that is replaced.
        let path = match fs::canonicalize(path) {
            Ok(real) => real,
            Err(_) if path.is_symlink() => {
                let error = anyhow!("{} is a link that leads nowhere", path.display());
                return Err(Misuse::of(error));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => std::path::absolute(path)?,
            Err(error) => return Err(error).with_context(|| cannot_read(path)),
        };
        let before = match fs::read_to_string(&path) {
            Ok(text) => Some(text),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error).with_context(|| cannot_read(&path)),
        };
        let empty = match format {
            Format::Json => "{}\n",
            Format::Toml => "",
        };
        let after = edit(before.as_deref().unwrap_or(empty))
            .with_context(|| format!("{} is left as it is", path.display()))
            .map_err(Misuse::of)?;
        Ok(Self { path, before, after })
    }

    fn is_needed(&self) -> bool {
        self.before.as_deref() != Some(self.after.as_str())
    }

    /// Returns the lines that go and come, between what stays at both ends.
    fn lines(&self) -> Vec<String> {
        let before: Vec<&str> = self.before.as_deref().unwrap_or_default().lines().collect();
        let after: Vec<&str> = self.after.lines().collect();
        let start = before.iter().zip(&after).take_while(|(one, other)| one == other).count();
        let backwards = before.iter().rev().zip(after.iter().rev());
        let end = backwards.take_while(|(one, other)| one == other).count();
        let end = end.min(before.len().min(after.len()) - start);
        let middle = |lines: &[&str], sign: char| -> Vec<String> {
            let until = lines.len().saturating_sub(end);
            let lines = lines.get(start..until).unwrap_or_default();
            lines.iter().map(|line| format!("  {sign} {}", ui::printable(line))).collect()
        };
        [middle(&before, '-'), middle(&after, '+')].concat()
    }

    /// Replaces the file in one step; permissions and owner stay, a new file is for its owner alone.
    // A file that nobody may write is somebody's wish, whatever its directory lets us do.
    fn write(&self) -> anyhow::Result<()> {
        let directory = self.path.parent().context("the file has no directory")?;
        fs::create_dir_all(directory)
            .with_context(|| format!("cannot make {}", directory.display()))?;
        let now = fs::read_to_string(&self.path).ok();
        if now != self.before {
            bail!("{} changed meanwhile; try again", self.path.display());
        }
        let metadata = fs::metadata(&self.path).ok();
        if metadata.as_ref().is_some_and(|metadata| metadata.permissions().readonly()) {
            bail!("{} is read-only", self.path.display());
        }
        let written = (|| {
            let mut file = tempfile::NamedTempFile::new_in(directory)?;
            file.write_all(self.after.as_bytes())?;
            if let Some(metadata) = &metadata {
                let mine = file.as_file().metadata()?;
                if (metadata.uid(), metadata.gid()) != (mine.uid(), mine.gid()) {
                    fchown(file.as_file(), Some(metadata.uid()), Some(metadata.gid()))?;
                }
                let mode = metadata.permissions().mode();
                file.as_file().set_permissions(fs::Permissions::from_mode(mode))?;
            }
            file.as_file().sync_all()?;
            file.persist(&self.path).map_err(|error| error.error)?;
            Ok::<(), io::Error>(())
        })();
        written.with_context(|| format!("cannot write {}", self.path.display()))
    }
}

fn cannot_read(path: &Path) -> String {
    format!("cannot read {}", path.display())
}

/// Shows a change, has it agreed to, and makes it.
pub(crate) fn carry_out(change: &Change, how: &Install, next: &str) -> anyhow::Result<Exit> {
    let report = |status: &str| {
        if how.json {
            ui::json(
                &json!({"file": change.path.to_string_lossy(), "status": status, "change": change.lines()}),
            );
        } else if status == "written" {
            ui::note(&format!("wrote {}; {next}", change.path.display()));
        }
    };
    if !change.is_needed() {
        if !how.json {
            ui::note(&format!("{} has it already", change.path.display()));
        }
        report("unchanged");
        return Ok(Exit::Success);
    }
    if !how.json {
        let word = if change.before.is_some() { "change" } else { "new file" };
        ui::note(&format!("{word} {}:", change.path.display()));
        change.lines().iter().for_each(|line| ui::note(line));
    }
    if how.dry_run {
        report("planned");
        return Ok(Exit::Success);
    }
    if !how.yes && !agreed()? {
        report("refused");
        if !how.json {
            ui::note("nothing was changed");
        }
        return Ok(Exit::Failure);
    }
    change.write()?;
    report("written");
    Ok(Exit::Success)
}

fn agreed() -> anyhow::Result<bool> {
    if !io::stdin().is_terminal() {
        let error = anyhow!("nobody can be asked here: use --yes, or --dry-run to look");
        return Err(Misuse::of(error));
    }
    ui::prompt("write it? [y/N] ");
    let mut line = String::new();
    io::stdin().lock().read_line(&mut line).context("no answer")?;
    Ok(matches!(line.trim(), "y" | "Y" | "yes"))
}

/// Sets one member of JSON text to what `edit` makes of the whole, and leaves every other letter;
/// what does not read as an object is refused.
pub(crate) fn with_json(
    before: &str,
    path: &[&str],
    edit: impl FnOnce(&Map<String, Value>) -> anyhow::Result<Value>,
) -> anyhow::Result<String> {
    let text = if before.trim().is_empty() { "{}\n" } else { before };
    let value: Value = serde_json::from_str(text).context("it is no JSON we can read")?;
    let Value::Object(root) = value else { bail!("it is no JSON object") };
    json::with_member(text, path, &edit(&root)?)
}

/// Puts a table into TOML text, in place of one of that name.
///
/// Only headers on lines of their own are understood. A file that names the table in another way,
/// or has a text over several lines, is refused.
pub(crate) fn with_toml_table(
    before: &str,
    name: &str,
    lines: &[String],
) -> anyhow::Result<String> {
    toml::refuse_broken(before)?;
    if before.contains("\"\"\"") || before.contains("'''") {
        bail!("it has texts over several lines, which we do not read; add [{name}] by hand");
    }
    let header = format!("[{name}]");
    let last = name.rsplit('.').next().unwrap_or(name);
    let mut kept: Vec<&str> = Vec::new();
    let (mut is_ours, mut parent) = (false, String::new());
    // What stands below our table and above the next one speaks of the next one.
    let mut remarks: Vec<&str> = Vec::new();
    for line in before.lines() {
        let bare = line.split('#').next().unwrap_or_default().trim();
        if bare.starts_with('[') {
            let plain: String = bare.chars().filter(|c| !"\"' ".contains(*c)).collect();
            is_ours = plain == header || plain.starts_with(&format!("[{name}."));
            parent = plain.trim_matches(['[', ']']).to_owned();
            if !is_ours {
                kept.extend(remarks.drain(..).skip_while(|line| line.trim().is_empty()));
            }
        } else if is_ours && bare.is_empty() {
            remarks.push(line);
        } else if is_ours {
            remarks.clear();
        } else if bare.contains('=') {
            let key: String =
                bare.split('=').next().unwrap_or_default().replace(['"', '\'', ' '], "");
            let full = if parent.is_empty() { key } else { format!("{parent}.{key}") };
            let parent_name = name.strip_suffix(last).unwrap_or_default().trim_end_matches('.');
            if full == name || full.starts_with(&format!("{name}.")) || full == parent_name {
                bail!("it names {name} in a way we do not change; add [{name}] by hand");
            }
        }
        if !is_ours {
            kept.push(line);
        }
    }
    kept.extend(remarks.into_iter().skip_while(|line| line.trim().is_empty()));
    let mut after = kept.join("\n").trim_end().to_owned();
    if !after.is_empty() {
        after.push_str("\n\n");
    }
    after.push_str(&header);
    after.push('\n');
    lines.iter().for_each(|line| after.push_str(&format!("{line}\n")));
    Ok(after)
}

/// Returns the path of this very program.
pub(crate) fn this_program() -> anyhow::Result<String> {
    let path = std::env::current_exe().context("this program does not know its own path")?;
    Ok(path.to_str().context("the path of this program is not UTF-8")?.to_owned())
}

/// Refuses a workspace that this very program lies in.
// SECURITY: whoever works there could put another program in its place, which judges in its name.
pub(crate) fn refuse_own_program(workspace: &Path) -> anyhow::Result<()> {
    let program = std::env::current_exe().context("this program does not know its own path")?;
    let workspace = fs::canonicalize(workspace).context("the workspace does not exist")?;
    if program.starts_with(&workspace) {
        let (program, workspace) = (program.display(), workspace.display());
        bail!(
            "{program} lies in the workspace {workspace}, where an agent could replace it; \
             install warrant elsewhere"
        );
    }
    Ok(())
}

/// Returns the person's home directory.
pub(crate) fn home_directory() -> anyhow::Result<PathBuf> {
    let home = std::env::var_os("HOME").filter(|home| !home.is_empty());
    let missing =
        "HOME is not set, so there are no settings of yours; --project changes those here";
    Ok(PathBuf::from(home.context(missing).map_err(Misuse::of)?))
}

/// Returns the directory that a variable names; one that is empty names none.
pub(crate) fn named_directory(variable: &str) -> Option<PathBuf> {
    std::env::var_os(variable).filter(|named| !named.is_empty()).map(PathBuf::from)
}

/// Returns the arguments that make another start of this program use the same home.
pub(crate) fn home_arguments(home: Option<&Path>) -> anyhow::Result<Vec<String>> {
    let named = home.map(Path::to_owned).or_else(|| {
        std::env::var_os("WARRANT_HOME").filter(|home| !home.is_empty()).map(PathBuf::from)
    });
    let Some(home) = named else { return Ok(Vec::new()) };
    let home = std::path::absolute(home).context("the home has no absolute path")?;
    let home = home.to_str().context("the path of the home is not UTF-8")?;
    Ok(vec!["--home".to_owned(), home.to_owned()])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines() -> Vec<String> {
        vec!["command = \"w\"".to_owned()]
    }

    #[track_caller]
    fn check(before: &str, expected: &str) {
        let after = with_toml_table(before, "mcp_servers.warrant", &lines()).unwrap();
        assert_eq!(after, expected);
        let again = with_toml_table(&after, "mcp_servers.warrant", &lines()).unwrap();
        assert_eq!(again, after, "twice is the same as once");
    }

    #[test]
    fn a_table_is_added_or_replaced_and_the_rest_stays() {
        let table = "[mcp_servers.warrant]\ncommand = \"w\"\n";
        check("", table);
        check("model = \"x\" # y\n", &format!("model = \"x\" # y\n\n{table}"));
        check(
            "[mcp_servers.warrant]\ncommand = \"old\"\n[mcp_servers.warrant.env]\nA = \"b\"\n\n[other]\nx = 1\n",
            &format!("[other]\nx = 1\n\n{table}"),
        );
        check(
            "# top\n[mcp_servers.warrant]\n# gone\ncommand = \"old\"\n\n# of other\n[other]\n# end\n",
            &format!("# top\n# of other\n[other]\n# end\n\n{table}"),
        );
        check("[mcp_servers.other]\nx = 1\n", &format!("[mcp_servers.other]\nx = 1\n\n{table}"));
    }

    #[test]
    fn toml_that_we_might_destroy_is_refused() {
        for before in [
            "mcp_servers = { warrant = { command = \"x\" } }\n",
            "mcp_servers.warrant.command = \"x\"\n",
            "[mcp_servers]\nwarrant = { command = \"x\" }\n",
            "[mcp_servers]\n\"warrant\".command = \"x\"\n",
            "text = \"\"\"\n[mcp_servers.warrant]\n\"\"\"\n",
        ] {
            assert!(with_toml_table(before, "mcp_servers.warrant", &lines()).is_err(), "{before}");
        }
    }

    #[test]
    fn json_that_we_cannot_read_is_refused() {
        for before in ["[]", "{", "// comment\n{}", "{\"a\": 1} x", "{\"mcpServers\": []}"] {
            let after = with_json(before, &["mcpServers", "warrant"], |_| Ok(Value::Null));
            assert!(after.is_err(), "{before}");
        }
    }
}

//! Whether a text is TOML: its shape, its texts and its names; numbers and dates by their letters.
//!
//! Nothing is read out of it. It keeps us from adding a table to a file that its own program would
//! refuse, so that the file stays as its owner left it.

use std::collections::BTreeSet;

use anyhow::bail;

/// How deep lists and inline tables may lie in each other.
const DEEPEST: usize = 64;

/// Refuses a text that is no TOML, with the line that is wrong.
pub(crate) fn check(text: &str) -> anyhow::Result<()> {
    let mut reader = Reader { rest: text, depth: 0 };
    let wrong = |reader: &Reader<'_>, what: &str| {
        let read = text.len() - reader.rest.len();
        let line = text.get(..read).unwrap_or_default().matches('\n').count() + 1;
        anyhow::anyhow!("line {line} is no TOML: {what}")
    };
    let mut names = Names::default();
    let mut table: Vec<String> = Vec::new();
    loop {
        reader.space_and_lines();
        if reader.rest.is_empty() {
            return Ok(());
        }
        let known = reader.expression(&mut table, &mut names);
        known.map_err(|what| wrong(&reader, &what))?;
        reader.space();
        reader.comment();
        if !reader.rest.is_empty() && !reader.takes("\n") && !reader.takes("\r\n") {
            return Err(wrong(&reader, "something follows where the line should end"));
        }
    }
}

type Read<T> = Result<T, String>;

struct Reader<'a> {
    rest: &'a str,
    depth: usize,
}

/// What has been given a value, so that nothing gets two.
#[derive(Default)]
struct Names {
    values: BTreeSet<Vec<String>>,
    tables: BTreeSet<Vec<String>>,
    lists: BTreeSet<Vec<String>>,
}

impl Names {
    fn table(&mut self, path: &[String], is_list: bool) -> Read<()> {
        let path = path.to_vec();
        if self.values.contains(&path) || (is_list && self.tables.contains(&path)) {
            return Err(format!("{} is something else already", path.join(".")));
        }
        if is_list {
            // Each entry of the list begins anew.
            let is_below = |known: &Vec<String>| known.starts_with(&path);
            self.values.retain(|known| !is_below(known));
            self.tables.retain(|known| !is_below(known));
            self.lists.insert(path);
        } else if self.lists.contains(&path) || !self.tables.insert(path.clone()) {
            return Err(format!("the table {} stands twice", path.join(".")));
        }
        Ok(())
    }

    fn value(&mut self, path: Vec<String>) -> Read<()> {
        let is_table = self.tables.iter().any(|known| known.starts_with(&path));
        let is_below_a_value = (1..path.len())
            .any(|length| path.get(..length).is_some_and(|above| self.values.contains(above)));
        let text = path.join(".");
        match is_table || is_below_a_value || !self.values.insert(path) {
            true => Err(format!("{text} has a value already")),
            false => Ok(()),
        }
    }
}

impl Reader<'_> {
    fn takes(&mut self, text: &str) -> bool {
        match self.rest.strip_prefix(text) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn space(&mut self) {
        self.rest = self.rest.trim_start_matches([' ', '\t']);
    }

    fn comment(&mut self) {
        if self.rest.starts_with('#') {
            let end = self.rest.find('\n').unwrap_or(self.rest.len());
            self.rest = self.rest.get(end..).unwrap_or_default();
        }
    }

    fn space_and_lines(&mut self) {
        loop {
            let before = self.rest.len();
            self.rest = self.rest.trim_start_matches([' ', '\t', '\r', '\n']);
            self.comment();
            if self.rest.len() == before {
                return;
            }
        }
    }

    /// Reads one header or one assignment.
    fn expression(&mut self, table: &mut Vec<String>, names: &mut Names) -> Read<()> {
        if self.takes("[") {
            let is_list = self.takes("[");
            *table = self.key()?;
            if !self.takes(if is_list { "]]" } else { "]" }) {
                return Err("the header is not closed".to_owned());
            }
            return names.table(table, is_list);
        }
        let key = self.key()?;
        if !self.takes("=") {
            return Err("a name without `=`".to_owned());
        }
        self.space();
        self.value()?;
        names.value([table.as_slice(), &key].concat())
    }

    /// Reads a name, which may have dots, and the space around it.
    fn key(&mut self) -> Read<Vec<String>> {
        let mut parts = Vec::new();
        loop {
            self.space();
            parts.push(match self.rest.chars().next() {
                Some(quote @ ('"' | '\'')) => self.text(quote)?,
                _ => {
                    let is_bare = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
                    let end = self.rest.find(|c| !is_bare(c)).unwrap_or(self.rest.len());
                    let (bare, rest) = self.rest.split_at(end);
                    if bare.is_empty() {
                        return Err("a name is missing".to_owned());
                    }
                    self.rest = rest;
                    bare.to_owned()
                }
            });
            self.space();
            if !self.takes(".") {
                return Ok(parts);
            }
        }
    }

    /// Reads a text on one line, or on several when the quotes are three.
    fn text(&mut self, quote: char) -> Read<String> {
        let three = quote.to_string().repeat(3);
        let is_long = self.takes(&three);
        if !is_long {
            self.takes(&quote.to_string());
        }
        let mut read = String::new();
        loop {
            if is_long && self.takes(&three) {
                // Up to two quotes may stand directly before the end.
                while self.takes(&quote.to_string()) {}
                return Ok(read);
            }
            let Some(next) = self.rest.chars().next() else { break };
            self.rest = self.rest.get(next.len_utf8()..).unwrap_or_default();
            match next {
                '\n' if !is_long => break,
                '\\' if quote == '"' => read.push(self.escaped(is_long)?),
                next if next == quote && !is_long => return Ok(read),
                next if next.is_control() && !matches!(next, '\t' | '\n' | '\r') => {
                    return Err("a control character in a text".to_owned());
                }
                next => read.push(next),
            }
        }
        Err("a text is not closed".to_owned())
    }

    fn escaped(&mut self, is_long: bool) -> Read<char> {
        let Some(next) = self.rest.chars().next() else {
            return Err("a text is not closed".to_owned());
        };
        self.rest = self.rest.get(next.len_utf8()..).unwrap_or_default();
        let digits = match next {
            'b' | 't' | 'n' | 'f' | 'r' | 'e' | '"' | '\\' => return Ok(next),
            ' ' | '\t' | '\r' | '\n' if is_long => return Ok(next),
            'x' => 2,
            'u' => 4,
            'U' => 8,
            _ => return Err(format!("there is no `\\{next}` in a text")),
        };
        let number = self.rest.get(..digits).and_then(|hex| u32::from_str_radix(hex, 16).ok());
        let letter = number.and_then(char::from_u32).ok_or("a number that is no letter")?;
        self.rest = self.rest.get(digits..).unwrap_or_default();
        Ok(letter)
    }

    fn value(&mut self) -> Read<()> {
        if self.depth == DEEPEST {
            return Err("it is nested too deeply".to_owned());
        }
        self.depth += 1;
        let read = match self.rest.chars().next() {
            Some(quote @ ('"' | '\'')) => self.text(quote).map(drop),
            Some('[') => self.list(),
            Some('{') => self.inline_table(),
            _ => self.plain(),
        };
        self.depth -= 1;
        read
    }

    fn list(&mut self) -> Read<()> {
        self.takes("[");
        loop {
            self.space_and_lines();
            if self.takes("]") {
                return Ok(());
            }
            self.value()?;
            self.space_and_lines();
            if !self.takes(",") && !self.rest.starts_with(']') {
                return Err("a list is not closed".to_owned());
            }
        }
    }

    fn inline_table(&mut self) -> Read<()> {
        self.takes("{");
        let mut names = Names::default();
        loop {
            self.space_and_lines();
            if self.takes("}") {
                return Ok(());
            }
            self.expression_inside(&mut names)?;
            self.space_and_lines();
            if !self.takes(",") && !self.rest.starts_with('}') {
                return Err("an inline table is not closed".to_owned());
            }
        }
    }

    fn expression_inside(&mut self, names: &mut Names) -> Read<()> {
        let key = self.key()?;
        if !self.takes("=") {
            return Err("a name without `=`".to_owned());
        }
        self.space();
        self.value()?;
        names.value(key)
    }

    /// Reads a number, a date or a word.
    fn plain(&mut self) -> Read<()> {
        let end = self.rest.find([',', ']', '}', '#', '\n', '\r']).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        let word = word.trim_end();
        let unsigned = word.strip_prefix(['+', '-']).unwrap_or(word);
        let begins_with_a_digit = unsigned.starts_with(|c: char| c.is_ascii_digit());
        let is_letter = |c: char| c.is_ascii_alphanumeric() || "+-_.: ".contains(c);
        let is_number = begins_with_a_digit && unsigned.chars().all(is_letter);
        let is_date = unsigned.contains(['-', ':']);
        let is_one_word = !unsigned.contains(' ') || is_date;
        let is_word = matches!(word, "true" | "false") || matches!(unsigned, "inf" | "nan");
        if !(is_word || is_number && is_one_word) {
            return Err("a value is missing, or is a word without quotes".to_owned());
        }
        self.rest = rest;
        Ok(())
    }
}

/// Refuses what is no TOML, as an error of whoever wrote it.
pub(crate) fn refuse_broken(text: &str) -> anyhow::Result<()> {
    if let Err(error) = check(text) {
        bail!("{error}; mend it first");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn toml_is_told_from_what_is_none() {
        for good in [
            "",
            "# only a comment",
            "a = 1\nb.c = 'x' # y\n\"d e\" = \"\\u00e4\\n\"\n",
            "[a]\nx = 1\n[a.b]\nx = [1, 2, # three\n 3,\n]\n[[l]]\nx = 1\n[[l]]\nx = 2\n",
            "t = { a = 1, b = { c = [] } }\nd = 1979-05-27T07:32:00Z\nf = -1_0.5e+3\nh = 0xff\n",
            "e = 1979-05-27 07:32:00\nl = 07:32:00\nm = \"\"\"a\nb\"\"\"\"\n",
            "a = 1\r\n[b]\r\nc = true\r\n",
        ] {
            check(good).unwrap_or_else(|error| panic!("{good}: {error}"));
        }
        for bad in [
            "a",
            "a =",
            "a = 1 b = 2",
            "a = \"x",
            "a = \"x\ny\"",
            "a = [1, 2",
            "a = {b = 1",
            "[a",
            "[a]]",
            "[[a]",
            "a = yes",
            "= 1",
            "a = 1\na = 2",
            "[a]\n[a]",
            "a = 1\n[a]",
            "a = \"\\q\"",
            "[]",
        ] {
            assert!(check(bad).is_err(), "{bad}");
        }
        let deep = format!("a = {}", "[".repeat(100_000));
        assert!(check(&deep).is_err());
        assert!(check("a = 1\nb\n").unwrap_err().to_string().contains("line 2"));
    }
}

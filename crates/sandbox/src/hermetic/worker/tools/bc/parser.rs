//! The grammar of `bc`.

/// One thing to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Statement {
    Quit,
    Break,
    Show(Expression),
    Text(String),
    Print(Vec<Expression>),
    Block(Vec<Statement>),
    If { condition: Expression, then: Option<Box<Statement>>, otherwise: Option<Box<Statement>> },
    Loop { condition: Expression, step: Option<Expression>, body: Box<Statement> },
}

/// One thing to compute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Expression {
    Number(String),
    Text(String),
    Variable(String),
    Assign { name: String, operator: Option<String>, value: Box<Expression> },
    Step { name: String, by: i32, is_before: bool },
    Negate(Box<Expression>),
    Not(Box<Expression>),
    Call { name: String, argument: Box<Expression> },
    Binary { operator: String, left: Box<Expression>, right: Box<Expression> },
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Token {
    Number(String),
    Name(String),
    Text(String),
    Mark(String),
    End,
}

/// Operators of two characters and more come before those that start them.
const MARKS: [&str; 33] = [
    "&&", "||", "==", "!=", "<=", ">=", "++", "--", "+=", "-=", "*=", "/=", "%=", "^=", "+", "-",
    "*", "/", "%", "^", "=", "<", ">", "!", "(", ")", "{", "}", "[", "]", ";", ",", "\n",
];

/// Deeper nesting than this is refused.
const MAX_DEPTH: usize = 200;

/// Returns the statements of a program up to the first that is none, and what is wrong there.
pub(super) fn parse(program: &str) -> (Vec<Statement>, Result<(), String>) {
    let mut statements = Vec::new();
    let tokens = match tokens(program) {
        Ok(tokens) => tokens,
        Err(complaint) => return (statements, Err(complaint)),
    };
    let mut parser = Parser { tokens, at: 0, depth: 0 };
    loop {
        while parser.takes(";") || parser.takes("\n") {}
        if parser.peek() == &Token::End {
            return (statements, Ok(()));
        }
        let statement = match parser.statement() {
            Ok(statement) => statement,
            Err(complaint) => return (statements, Err(complaint)),
        };
        let is_over = parser.takes(";") || parser.takes("\n") || parser.peek() == &Token::End;
        if !is_over && !matches!(statement, Statement::Block(_)) {
            return (statements, Err("syntax error".into()));
        }
        statements.push(statement);
    }
}

/// Returns what a printed text means.
pub(super) fn unescape(text: &str) -> String {
    let mut plain = String::new();
    let mut characters = text.chars();
    while let Some(c) = characters.next() {
        if c != '\\' {
            plain.push(c);
            continue;
        }
        match characters.next() {
            Some('n') => plain.push('\n'),
            Some('t') => plain.push('\t'),
            Some('q') => plain.push('"'),
            Some('a') => plain.push('\u{7}'),
            Some('r') => plain.push('\r'),
            Some(other) => plain.push(other),
            None => plain.push('\\'),
        }
    }
    plain
}

fn tokens(program: &str) -> Result<Vec<Token>, String> {
    let mut tokens = Vec::new();
    let mut rest = program;
    while let Some(first) = rest.chars().next() {
        let length = |is_part: fn(char) -> bool| rest.find(|c| !is_part(c)).unwrap_or(rest.len());
        let taken = if let Some(comment) = rest.strip_prefix("/*") {
            comment.find("*/").map_or(rest.len(), |at| at + 4)
        } else if first == '#' {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("\\\n") {
            2
        } else if first.is_ascii_digit() || first == '.' || first.is_ascii_uppercase() {
            let length = length(|c| c.is_ascii_digit() || c == '.' || c.is_ascii_uppercase());
            let text = rest.get(..length).unwrap_or_default();
            if text == "." {
                tokens.push(Token::Name("last".into()));
            } else {
                tokens.push(Token::Number(text.to_owned()));
            }
            length
        } else if first.is_ascii_lowercase() {
            let length = length(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
            tokens.push(Token::Name(rest.get(..length).unwrap_or_default().to_owned()));
            length
        } else if let Some(text) = rest.strip_prefix('"') {
            let end = text.find('"').ok_or("a string has no end")?;
            tokens.push(Token::Text(text.get(..end).unwrap_or_default().to_owned()));
            end + 2
        } else if let Some(mark) = MARKS.iter().find(|mark| rest.starts_with(**mark)) {
            tokens.push(Token::Mark((*mark).to_owned()));
            mark.len()
        } else if first.is_whitespace() {
            first.len_utf8()
        } else {
            return Err(format!("illegal character: {first}"));
        };
        rest = rest.get(taken..).unwrap_or_default();
    }
    tokens.push(Token::End);
    Ok(tokens)
}

struct Parser {
    tokens: Vec<Token>,
    at: usize,
    depth: usize,
}

impl Parser {
    fn peek(&self) -> &Token {
        self.tokens.get(self.at).unwrap_or(&Token::End)
    }

    fn next(&mut self) -> Token {
        let token = self.peek().clone();
        self.at += 1;
        token
    }

    fn takes(&mut self, mark: &str) -> bool {
        let found = matches!(self.peek(), Token::Mark(found) if found == mark);
        self.at += usize::from(found);
        found
    }

    fn needs(&mut self, mark: &str) -> Result<(), String> {
        if self.takes(mark) { Ok(()) } else { Err("syntax error".into()) }
    }

    fn statement(&mut self) -> Result<Statement, String> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(format!("nesting beyond {MAX_DEPTH} is not supported here"));
        }
        let statement = self.bare_statement();
        self.depth -= 1;
        statement
    }

    fn bare_statement(&mut self) -> Result<Statement, String> {
        if self.takes("{") {
            return self.block();
        }
        let name = match self.peek() {
            Token::Name(name) => name.clone(),
            Token::Text(text) => {
                let text = text.clone();
                self.at += 1;
                return Ok(Statement::Text(text));
            }
            _ => String::new(),
        };
        match name.as_str() {
            "quit" | "halt" => self.at += 1,
            "break" => {
                self.at += 1;
                return Ok(Statement::Break);
            }
            "if" | "while" | "for" | "print" => {
                self.at += 1;
                return self.keyword(&name);
            }
            "define" | "auto" | "return" | "continue" | "read" => {
                return Err(format!("`{name}` is not supported here"));
            }
            _ => return Ok(Statement::Show(self.expression(0)?)),
        }
        Ok(Statement::Quit)
    }

    fn keyword(&mut self, name: &str) -> Result<Statement, String> {
        if name == "print" {
            let mut items = Vec::new();
            loop {
                match self.peek().clone() {
                    Token::Text(text) => {
                        self.at += 1;
                        items.push(Expression::Text(text));
                    }
                    _ => items.push(self.expression(0)?),
                }
                if !self.takes(",") {
                    return Ok(Statement::Print(items));
                }
            }
        }
        self.needs("(")?;
        if name == "for" {
            let start = self.expression(0)?;
            self.needs(";")?;
            let condition = self.expression(0)?;
            self.needs(";")?;
            let step = self.expression(0)?;
            self.needs(")")?;
            let body = Box::new(self.body()?);
            // The start is computed and not shown, whatever it is.
            let start = Statement::If { condition: start, then: None, otherwise: None };
            let repeat = Statement::Loop { condition, step: Some(step), body };
            return Ok(Statement::Block(vec![start, repeat]));
        }
        let condition = self.expression(0)?;
        self.needs(")")?;
        let then = Box::new(self.body()?);
        if name == "while" {
            return Ok(Statement::Loop { condition, step: None, body: then });
        }
        let has_else = matches!(self.peek(), Token::Name(name) if name == "else");
        self.at += usize::from(has_else);
        let otherwise = if has_else { Some(Box::new(self.body()?)) } else { None };
        Ok(Statement::If { condition, then: Some(then), otherwise })
    }

    fn body(&mut self) -> Result<Statement, String> {
        while self.takes("\n") {}
        self.statement()
    }

    fn block(&mut self) -> Result<Statement, String> {
        let mut statements = Vec::new();
        loop {
            while self.takes(";") || self.takes("\n") {}
            if self.takes("}") {
                return Ok(Statement::Block(statements));
            }
            if self.peek() == &Token::End {
                return Err("syntax error".into());
            }
            statements.push(self.statement()?);
        }
    }

    /// Reads an expression whose operators bind at least as strongly as `least`.
    fn expression(&mut self, least: u8) -> Result<Expression, String> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(format!("nesting beyond {MAX_DEPTH} is not supported here"));
        }
        let mut left = self.operand()?;
        while let Token::Mark(mark) = self.peek().clone() {
            let Some((binding, right_binding)) = strength(&mark) else { break };
            if binding < least {
                break;
            }
            self.at += 1;
            let right = Box::new(self.expression(right_binding)?);
            left = Expression::Binary { operator: mark, left: Box::new(left), right };
        }
        self.depth -= 1;
        Ok(left)
    }

    fn operand(&mut self) -> Result<Expression, String> {
        match self.next() {
            Token::Number(text) => Ok(Expression::Number(text)),
            Token::Mark(mark) => match mark.as_str() {
                "(" => {
                    let inner = self.expression(0)?;
                    self.needs(")")?;
                    Ok(inner)
                }
                // A minus binds more strongly than a power, as in GNU's.
                "-" => Ok(Expression::Negate(Box::new(self.operand()?))),
                "!" => Ok(Expression::Not(Box::new(self.expression(3)?))),
                "++" | "--" => match self.next() {
                    Token::Name(name) => Ok(Expression::Step {
                        name,
                        by: if mark == "++" { 1 } else { -1 },
                        is_before: true,
                    }),
                    _ => Err("syntax error".into()),
                },
                _ => Err("syntax error".into()),
            },
            Token::Name(name) => self.named(name),
            Token::Text(_) | Token::End => Err("syntax error".into()),
        }
    }

    fn named(&mut self, name: String) -> Result<Expression, String> {
        if self.takes("[") {
            return Err(format!("the array {name}[] is not supported here"));
        }
        if self.takes("(") {
            let argument = Box::new(self.expression(0)?);
            self.needs(")")?;
            return Ok(Expression::Call { name, argument });
        }
        if self.takes("++") {
            return Ok(Expression::Step { name, by: 1, is_before: false });
        }
        if self.takes("--") {
            return Ok(Expression::Step { name, by: -1, is_before: false });
        }
        let Token::Mark(mark) = self.peek().clone() else { return Ok(Expression::Variable(name)) };
        let operator = match mark.as_str() {
            "=" => None,
            "+=" | "-=" | "*=" | "/=" | "%=" | "^=" => mark.get(..1).map(str::to_owned),
            _ => return Ok(Expression::Variable(name)),
        };
        self.at += 1;
        let value = Box::new(self.expression(3)?);
        Ok(Expression::Assign { name, operator, value })
    }
}

/// Returns how strongly an operator binds on its left and on its right.
fn strength(mark: &str) -> Option<(u8, u8)> {
    match mark {
        "||" => Some((1, 2)),
        "&&" => Some((2, 3)),
        "==" | "!=" | "<" | ">" | "<=" | ">=" => Some((4, 5)),
        "+" | "-" => Some((5, 6)),
        "*" | "/" | "%" => Some((6, 7)),
        "^" => Some((8, 8)),
        _ => None,
    }
}

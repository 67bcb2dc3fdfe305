//! `bc`: numbers of any length with the scale rules of POSIX.
//!
//! Expressions, assignments, `if`, `while`, `for`, `print`, `sqrt`, `length`, `scale` and the math
//! library of `-l`. Functions of one's own and arrays are refused by name.

mod functions;
mod number;
mod parser;

use std::collections::BTreeMap;

use async_trait::async_trait;
use bashkit::{Builtin, BuiltinContext, ExecResult, Result};

use super::arguments::{self, Known, flag};
use super::{absolute, reason};
use number::Number;
use parser::{Expression, Statement};

const OPTIONS: [Known; 5] = [
    flag('l', "mathlib"),
    flag('q', "quiet"),
    flag('s', "standard"),
    flag('w', "warn"),
    flag('i', "interactive"),
];

/// The scale that `-l` starts with.
const LIBRARY_SCALE: usize = 20;

/// More digits than this are refused: they would take the whole run.
const MAX_SCALE: usize = 100_000;

/// A line of output is broken after this many characters, as in every `bc`.
const LINE: usize = 69;

/// The command `bc`.
pub(super) struct Bc;

#[async_trait]
impl Builtin for Bc {
    async fn execute(&self, ctx: BuiltinContext<'_>) -> Result<ExecResult> {
        let args = match arguments::parse("bc", ctx.args, &OPTIONS) {
            Ok(args) => args,
            Err(complaint) => return Ok(ExecResult::err(format!("{complaint}\n"), 1)),
        };
        let mut machine = Machine::new(args.has("l"), ctx.env.get("BC_LINE_LENGTH"));
        let mut programs = Vec::new();
        for operand in &args.operands {
            match ctx.fs.read_file(&absolute(ctx.cwd, operand)).await {
                Ok(bytes) => programs.push(String::from_utf8_lossy(&bytes).into_owned()),
                Err(error) => {
                    let text = format!("File {operand} is unavailable: {}\n", reason(&error));
                    return Ok(ExecResult::err(text, 1));
                }
            }
        }
        programs.extend(ctx.stdin.map(|stdin| stdin.text_lossy().into_owned()));
        let mut stderr = String::new();
        for program in programs {
            if machine.has_quit {
                break;
            }
            if let Err(complaint) = machine.run(&program) {
                stderr.push_str(&format!("(standard_in) 1: {complaint}\n"));
            }
        }
        // As in GNU's, an error of the program is told and the status stays 0, except where
        // something is not supported here.
        let exit_code = i32::from(stderr.contains("not supported"));
        let stdout = machine.output;
        Ok(ExecResult {
            stdout: stdout.into(),
            stderr: stderr.into(),
            exit_code,
            ..Default::default()
        })
    }
}

/// What a program has computed so far.
struct Machine {
    variables: BTreeMap<String, Number>,
    scale: usize,
    input_base: u32,
    output_base: u32,
    has_library: bool,
    line: usize,
    output: String,
    has_quit: bool,
    is_broken: bool,
}

impl Machine {
    fn new(has_library: bool, line: Option<&String>) -> Self {
        let line = line.and_then(|line| line.parse().ok()).map_or(LINE, |line: usize| match line {
            0 => usize::MAX,
            line => line.saturating_sub(1).max(1),
        });
        Self {
            variables: BTreeMap::new(),
            scale: if has_library { LIBRARY_SCALE } else { 0 },
            input_base: 10,
            output_base: 10,
            has_library,
            line,
            output: String::new(),
            has_quit: false,
            is_broken: false,
        }
    }

    fn run(&mut self, program: &str) -> std::result::Result<(), String> {
        let (statements, rest) = parser::parse(program);
        let mut error = None;
        for statement in statements {
            if self.has_quit {
                break;
            }
            // One statement that fails does not stop the next.
            if let Err(complaint) = self.execute(&statement) {
                error.get_or_insert(complaint);
            }
        }
        error.map_or(rest, Err)
    }

    fn execute(&mut self, statement: &Statement) -> std::result::Result<(), String> {
        match statement {
            Statement::Quit => self.has_quit = true,
            Statement::Break => self.is_broken = true,
            Statement::Show(expression) => {
                let value = self.value(expression)?;
                if !matches!(expression, Expression::Assign { .. }) {
                    self.show(&value);
                    self.output.push('\n');
                    self.variables.insert("last".into(), value);
                }
            }
            Statement::Text(text) => self.output.push_str(text),
            Statement::Print(items) => {
                for item in items {
                    match item {
                        Expression::Text(text) => self.output.push_str(&parser::unescape(text)),
                        item => {
                            let value = self.value(item)?;
                            self.show(&value);
                        }
                    }
                }
            }
            Statement::Block(statements) => {
                for statement in statements {
                    self.execute(statement)?;
                    if self.has_quit || self.is_broken {
                        break;
                    }
                }
            }
            Statement::If { condition, then, otherwise } => {
                let chosen = if self.value(condition)?.is_zero() { otherwise } else { then };
                if let Some(chosen) = chosen {
                    self.execute(chosen)?;
                }
            }
            Statement::Loop { condition, step, body } => {
                while !self.value(condition)?.is_zero() {
                    self.execute(body)?;
                    if self.has_quit || std::mem::take(&mut self.is_broken) {
                        break;
                    }
                    if let Some(step) = step {
                        self.value(step)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn show(&mut self, value: &Number) {
        let text = value.shown(self.output_base);
        let mut column = 0;
        for c in text.chars() {
            if column == self.line {
                self.output.push_str("\\\n");
                column = 0;
            }
            self.output.push(c);
            column += 1;
        }
    }

    fn value(&mut self, expression: &Expression) -> std::result::Result<Number, String> {
        match expression {
            Expression::Number(text) => {
                Number::parse(text, self.input_base).ok_or_else(|| format!("`{text}` is no number"))
            }
            Expression::Text(_) => Err("syntax error".into()),
            Expression::Variable(name) => Ok(self.read(name)),
            Expression::Assign { name, operator, value } => {
                let value = self.value(value)?;
                let value = match operator {
                    Some(operator) => self.apply(operator, &self.read(name), &value)?,
                    None => value,
                };
                self.write(name, value.clone())?;
                Ok(value)
            }
            Expression::Step { name, by, is_before } => {
                let old = self.read(name);
                let new = old.plus(&Number::whole(*by));
                self.write(name, new.clone())?;
                Ok(if *is_before { new } else { old })
            }
            Expression::Negate(inner) => Ok(self.value(inner)?.negated()),
            Expression::Not(inner) => Ok(Number::whole(i32::from(self.value(inner)?.is_zero()))),
            Expression::Call { name, argument } => {
                let argument = self.value(argument)?;
                self.call(name, &argument)
            }
            Expression::Binary { operator, left, right } => {
                let left = self.value(left)?;
                let right = self.value(right)?;
                self.apply(operator, &left, &right)
            }
        }
    }

    fn call(&self, name: &str, x: &Number) -> std::result::Result<Number, String> {
        match name {
            "sqrt" => x.root(self.scale).ok_or_else(|| "Square root of a negative number".into()),
            "length" => Ok(Number::whole(x.length())),
            "scale" => Ok(Number::whole(x.scale)),
            _ if self.has_library => functions::apply(name, x, self.scale)
                .ok_or_else(|| format!("function {name}: not supported here")),
            _ => Err(format!("Function {name} not defined")),
        }
    }

    fn apply(
        &self,
        operator: &str,
        left: &Number,
        right: &Number,
    ) -> std::result::Result<Number, String> {
        let order = left.minus(right);
        let truth = |is_true: bool| Ok(Number::whole(i32::from(is_true)));
        let scale = self.scale;
        match operator {
            "+" => Ok(left.plus(right)),
            "-" => Ok(order),
            "*" => Ok(left.times(right, scale)),
            "/" => left.over(right, scale).ok_or_else(|| "Divide by zero".into()),
            "%" => left.modulo(right, scale).ok_or_else(|| "Modulo by zero".into()),
            "^" => left.to_the(right, scale).ok_or_else(|| "exponent too large in raise".into()),
            "==" => truth(order.is_zero()),
            "!=" => truth(!order.is_zero()),
            "<" => truth(order.is_negative()),
            ">" => truth(!order.is_negative() && !order.is_zero()),
            "<=" => truth(order.is_negative() || order.is_zero()),
            ">=" => truth(!order.is_negative()),
            "&&" => truth(!left.is_zero() && !right.is_zero()),
            "||" => truth(!left.is_zero() || !right.is_zero()),
            _ => Err(format!("operator {operator}: not supported here")),
        }
    }

    fn read(&self, name: &str) -> Number {
        match name {
            "scale" => Number::whole(self.scale),
            "ibase" => Number::whole(self.input_base),
            "obase" => Number::whole(self.output_base),
            _ => self.variables.get(name).cloned().unwrap_or_else(|| Number::whole(0)),
        }
    }

    fn write(&mut self, name: &str, value: Number) -> std::result::Result<(), String> {
        let whole = || u32::try_from(&value.at(0).units).ok();
        match name {
            "scale" => {
                let scale = whole().and_then(|scale| usize::try_from(scale).ok());
                self.scale = scale
                    .filter(|scale| *scale <= MAX_SCALE)
                    .ok_or_else(|| format!("a scale beyond {MAX_SCALE} is not supported here"))?;
            }
            "ibase" => {
                let base = whole().filter(|base| (2..=16).contains(base));
                self.input_base = base.ok_or("ibase must be 2 to 16")?;
            }
            "obase" => {
                let base = whole().filter(|base| (2..=65_536).contains(base));
                self.output_base = base.ok_or("obase must be 2 to 65536")?;
            }
            _ => drop(self.variables.insert(name.to_owned(), value)),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(library: bool, program: &str, expected: &str) {
        let mut machine = Machine::new(library, None);
        let result = machine.run(program);
        assert_eq!(machine.output, expected, "{program}: {result:?}");
    }

    #[test]
    fn decimals_keep_what_bc_keeps() {
        check(false, "3.7*2\n", "7.4\n");
        check(false, "1/3\n", "0\n");
        check(false, "scale=4; 10/3\n", "3.3333\n");
        check(false, "0.1+0.2\n", ".3\n");
        check(false, "2^100\n", "1267650600228229401496703205376\n");
        check(false, "scale=2; 2^-2\n", ".25\n");
        check(false, "7 % 3; -7 / 2\n", "1\n-3\n");
        check(false, "scale=1; 7.5 % 2\n", ".1\n");
        check(false, "sqrt(2)\nscale=5\nsqrt(2)\n", "1\n1.41421\n");
        check(false, "obase=16; 255\nibase=2; 101\n", "FF\n5\n");
        check(false, "a=5; a+=2; a++; a\n", "7\n8\n");
        check(false, "for (i=0; i<3; i++) print i, \"\\n\"\n", "0\n1\n2\n");
        check(false, "if (3 > 2) 1 else 0\n", "1\n");
        check(true, "4*a(1)\n", "3.14159265358979323844\n");
        check(true, "e(1)\n", "2.71828182845904523536\n");
        check(true, "l(10)\n", "2.30258509299404568401\n");
        check(true, "scale=5; s(1); c(0)\n", ".84147\n1.00000\n");
    }
}

package standin

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// errIncomplete: the text ends inside of something, more lines could end it.
var errIncomplete = errors.New("the text is incomplete")

// Parse reads a script of the part of the language. What is outside of it is an
// error, though PowerShell may know it.
func Parse(text string) (err error) {
	_, err = parse(text)
	return err
}

// Cmdlets lists the commands that a script names.
func Cmdlets(text string) ([]string, error) {
	p := &parser{s: text, names: map[string]bool{}}
	if _, err := p.script(); err != nil {
		return nil, err
	}
	var all []string
	for n := range p.names {
		all = append(all, n)
	}
	return all, nil
}

func parse(text string) (*block, error) {
	return (&parser{s: text, names: map[string]bool{}}).script()
}

type parser struct {
	s     string
	i     int
	names map[string]bool // commands that were met
}

type syntaxError struct{ text string }

func (e *syntaxError) Error() string { return e.text }

func (p *parser) fail(format string, args ...any) {
	line := 1 + strings.Count(p.s[:min(p.i, len(p.s))], "\n")
	panic(&syntaxError{fmt.Sprintf("line %d: ", line) + fmt.Sprintf(format, args...)})
}

func (p *parser) script() (b *block, err error) {
	defer func() {
		switch r := recover().(type) {
		case nil:
		case *syntaxError:
			err = r
		case error:
			if r != errIncomplete {
				panic(r)
			}
			err = r
		default:
			panic(r)
		}
	}()
	for i := 0; i < len(p.s); i++ {
		if c := p.s[i]; c > 126 || c < 32 && c != '\n' && c != '\r' && c != '\t' {
			return nil, &syntaxError{fmt.Sprintf("byte %d is %#x: scripts are printable ASCII", i, c)}
		}
	}
	b = &block{text: p.s}
	b.params = p.paramBlock()
	b.body = p.statements("")
	return b, nil
}

func (p *parser) peek() byte {
	if p.i < len(p.s) {
		return p.s[p.i]
	}
	return 0
}

func (p *parser) has(prefix string) bool { return strings.HasPrefix(p.s[p.i:], prefix) }

// blanks skips spaces and comments up to the end of the line.
func (p *parser) blanks() {
	for p.i < len(p.s) {
		switch c := p.s[p.i]; {
		case c == ' ' || c == '\t' || c == '\r':
			p.i++
		case c == '#':
			for p.i < len(p.s) && p.s[p.i] != '\n' {
				p.i++
			}
		default:
			return
		}
	}
}

// gap skips blanks, ends of lines, and semicolons where statements end.
func (p *parser) gap(semicolons bool) {
	for {
		p.blanks()
		if c := p.peek(); c == '\n' || semicolons && c == ';' {
			p.i++
			continue
		}
		return
	}
}

func (p *parser) expect(c byte) {
	if p.i >= len(p.s) {
		panic(errIncomplete)
	}
	if p.s[p.i] != c {
		p.fail("%q where %q should be", p.s[p.i], c)
	}
	p.i++
}

func letter(c byte) bool { return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '_' }
func digit(c byte) bool  { return c >= '0' && c <= '9' }

func (p *parser) word() string {
	from := p.i
	for p.i < len(p.s) && (letter(p.s[p.i]) || digit(p.s[p.i])) {
		p.i++
	}
	return p.s[from:p.i]
}

// keyword takes a keyword, if that is what comes.
func (p *parser) keyword(names ...string) string {
	from := p.i
	w := strings.ToLower(p.word())
	for _, n := range names {
		if w == n && p.peek() != '-' && p.peek() != '\\' {
			return n
		}
	}
	p.i = from
	return ""
}

func (p *parser) paramBlock() (names []string) {
	p.gap(true)
	if p.keyword("param") == "" {
		return nil
	}
	p.gap(false)
	p.expect('(')
	for {
		p.gap(false)
		if p.peek() == ')' {
			p.i++
			return names
		}
		p.expect('$')
		names = append(names, strings.ToLower(p.word()))
		p.gap(false)
		if p.peek() != ')' {
			p.expect(',')
		}
	}
}

// statements reads up to the closing character, which it takes; "": to the end.
func (p *parser) statements(closing string) (all []statement) {
	for {
		p.gap(true)
		if p.i >= len(p.s) {
			if closing != "" {
				panic(errIncomplete)
			}
			return all
		}
		if closing != "" && p.has(closing) {
			p.i += len(closing)
			return all
		}
		all = append(all, p.statement())
		p.blanks()
		switch c := p.peek(); {
		case p.i >= len(p.s), c == '\n', c == ';', closing != "" && p.has(closing):
		default:
			if !ended(all[len(all)-1]) {
				p.fail("%q behind a statement", c)
			}
		}
	}
}

// ended: a statement that ends with a brace needs no separator.
func ended(s statement) bool {
	switch s.(type) {
	case *ifStatement, *foreachStatement, *tryStatement:
		return true
	}
	return false
}

func (p *parser) braces() *block {
	p.gap(false)
	p.expect('{')
	from := p.i
	b := &block{}
	b.params = p.paramBlock()
	b.body = p.statements("}")
	b.text = p.s[from : p.i-1]
	return b
}

func (p *parser) condition() statement {
	p.blanks()
	p.expect('(')
	p.gap(false)
	s := p.pipe()
	p.gap(false)
	p.expect(')')
	return s
}

func (p *parser) statement() statement {
	switch p.keyword("if", "foreach", "try", "throw", "return") {
	case "if":
		s := &ifStatement{conditions: []statement{p.condition()}}
		s.blocks = append(s.blocks, p.braces())
		for {
			at := p.i
			p.gap(false)
			switch p.keyword("elseif", "else") {
			case "elseif":
				s.conditions = append(s.conditions, p.condition())
				s.blocks = append(s.blocks, p.braces())
				continue
			case "else":
				s.otherwise = p.braces()
				return s
			}
			p.i = at
			return s
		}
	case "foreach":
		p.blanks()
		p.expect('(')
		p.blanks()
		p.expect('$')
		s := &foreachStatement{variable: strings.ToLower(p.word())}
		p.blanks()
		if p.keyword("in") == "" {
			p.fail("foreach without in")
		}
		p.blanks()
		s.in = p.pipe()
		p.gap(false)
		p.expect(')')
		s.body = p.braces()
		return s
	case "try":
		s := &tryStatement{body: p.braces()}
		for {
			at := p.i
			p.gap(false)
			switch p.keyword("catch", "finally") {
			case "catch":
				if s.catch != nil || s.finally != nil {
					p.fail("a second catch")
				}
				s.catch = p.braces()
				continue
			case "finally":
				s.finally = p.braces()
				return s
			}
			if p.i = at; s.catch == nil {
				if p.i >= len(p.s) {
					panic(errIncomplete)
				}
				p.fail("try without catch or finally")
			}
			return s
		}
	case "throw":
		p.blanks()
		return &throwStatement{p.expression()}
	case "return":
		p.blanks()
		if c := p.peek(); c == '}' || c == '\n' || c == ';' || c == 0 {
			return &returnStatement{}
		}
		return &returnStatement{p.pipe()}
	}
	if p.peek() == '$' && !p.has("$(") {
		at := p.i
		target := p.postfix()
		p.blanks()
		if p.peek() == '=' {
			p.i++
			switch target.(type) {
			case *variable, *member, *index:
			default:
				p.fail("this cannot be assigned to")
			}
			p.gap(false)
			return &assignment{target, p.pipe()}
		}
		p.i = at
	}
	return p.pipe()
}

func (p *parser) pipe() statement {
	s := &pipeline{}
	for {
		if c := p.peek(); c == '&' || letter(c) {
			s.elements = append(s.elements, p.command())
		} else {
			if len(s.elements) > 0 {
				p.fail("an expression behind |")
			}
			s.elements = append(s.elements, p.expression())
		}
		p.blanks()
		if p.peek() != '|' {
			return s
		}
		p.i++
		if p.peek() == '|' {
			p.fail("|| is not of PowerShell 5.1")
		}
		p.gap(false)
	}
}

func (p *parser) command() *command {
	c := &command{}
	if p.peek() == '&' {
		p.i++
		if p.peek() == '&' {
			p.fail("&& is not of PowerShell 5.1")
		}
		p.blanks()
		c.call = p.postfix()
	} else {
		from := p.i
		for p.i < len(p.s) && (letter(p.s[p.i]) || digit(p.s[p.i]) || strings.IndexByte(`-\.`, p.s[p.i]) >= 0) {
			p.i++
		}
		c.name = p.s[from:p.i]
		if !strings.Contains(c.name, "-") {
			p.fail("%q is no cmdlet's full name", c.name)
		}
		p.names[c.name] = true
	}
	for {
		p.blanks()
		switch ch := p.peek(); {
		case p.i >= len(p.s), strings.IndexByte("\n;|)}", ch) >= 0:
			return c
		case ch == '-' && p.i+1 < len(p.s) && letter(p.s[p.i+1]):
			p.i++
			a := argument{parameter: p.word()}
			if p.peek() == ':' {
				p.i++
				a.value = p.argumentValue()
			}
			c.args = append(c.args, a)
		default:
			c.args = append(c.args, argument{value: p.argumentValue()})
		}
	}
}

// argumentValue is what may stand as a cmdlet's argument: no operators.
func (p *parser) argumentValue() expression {
	items := []expression{p.oneArgument()}
	for {
		at := p.i
		p.blanks()
		if p.peek() != ',' {
			p.i = at
			break
		}
		p.i++
		p.gap(false)
		items = append(items, p.oneArgument())
	}
	if len(items) == 1 {
		return items[0]
	}
	return &comma{items}
}

func (p *parser) oneArgument() expression {
	c := p.peek()
	if strings.IndexByte(`$('"@{`, c) >= 0 {
		return p.postfix()
	}
	from := p.i
	for p.i < len(p.s) && (letter(p.s[p.i]) || digit(p.s[p.i]) || strings.IndexByte("-.", p.s[p.i]) >= 0) {
		p.i++
	}
	w := p.s[from:p.i]
	if w == "" {
		p.fail("%q as an argument", c)
	}
	if n, err := strconv.ParseInt(w, 10, 64); err == nil {
		return &literal{n}
	}
	return &literal{w}
}

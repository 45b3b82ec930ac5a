package standin

import (
	"strconv"
	"strings"
)

// The operators, by how loosely they bind.
var (
	logical    = []string{"-and", "-or"}
	comparison = []string{"-eq", "-ne", "-gt", "-ge", "-lt", "-le", "-like", "-notlike", "-contains", "-notcontains", "-in", "-notin"}
	additive   = []string{"+", "-"}
)

func (p *parser) operator(names []string) string {
	p.blanks()
	for _, n := range names {
		if len(n) == 1 {
			if p.peek() == n[0] && (n == "+" || p.i+1 < len(p.s) && !letter(p.s[p.i+1])) {
				p.i++
				return n
			}
			continue
		}
		if len(p.s)-p.i > len(n) && strings.EqualFold(p.s[p.i:p.i+len(n)], n) && !letter(p.s[p.i+len(n)]) {
			p.i += len(n)
			return n
		}
	}
	return ""
}

func (p *parser) expression() expression {
	return p.binary(logical, func() expression {
		return p.binary(comparison, func() expression { return p.binary(additive, p.commas) })
	})
}

func (p *parser) binary(names []string, next func() expression) expression {
	left := next()
	for {
		at := p.i
		op := p.operator(names)
		if op == "" {
			p.i = at
			return left
		}
		p.gap(false)
		left = &binary{op, left, next()}
	}
}

func (p *parser) commas() expression { return p.list(p.unary) }

// list reads what next reads, and more of it behind commas; one alone is itself.
func (p *parser) list(next func() expression) expression {
	items := []expression{next()}
	for {
		at := p.i
		p.blanks()
		if p.peek() != ',' {
			p.i = at
			break
		}
		p.i++
		p.gap(false)
		items = append(items, next())
	}
	if len(items) == 1 {
		return items[0]
	}
	return &comma{items}
}

func (p *parser) unary() expression {
	switch {
	case p.operator([]string{"-not"}) != "":
		p.blanks()
		return &unary{"-not", p.unary()}
	case p.peek() == '[':
		at := p.i
		name := p.typeName()
		if p.has("::") {
			p.i = at
			return p.postfix()
		}
		p.blanks()
		return &cast{name, p.unary()}
	}
	return p.postfix()
}

func (p *parser) typeName() string {
	p.expect('[')
	from := p.i
	for p.i < len(p.s) && (letter(p.s[p.i]) || digit(p.s[p.i]) || p.s[p.i] == '.') {
		p.i++
	}
	name := p.s[from:p.i]
	p.expect(']')
	if !knownType(name) {
		p.fail("the type [%s] is outside of the part of the language", name)
	}
	return strings.ToLower(name)
}

// postfix is a primary expression with members, calls and indices.
func (p *parser) postfix() expression {
	e := p.primary()
	for {
		switch {
		case p.has("::"):
			if _, ok := e.(*typeName); !ok {
				p.fail(":: behind something that is no type")
			}
			p.i += 2
			e = p.member(e, true)
		case p.peek() == '.' && p.i+1 < len(p.s) && letter(p.s[p.i+1]):
			p.i++
			e = p.member(e, false)
		case p.peek() == '[':
			p.i++
			p.gap(false)
			at := p.expression()
			p.gap(false)
			p.expect(']')
			e = &index{e, at}
		default:
			return e
		}
	}
}

func (p *parser) member(of expression, static bool) expression {
	m := &member{of: of, name: p.word(), static: static}
	if m.name == "" {
		p.fail("a member without a name")
	}
	if p.peek() != '(' {
		return m
	}
	p.i++
	m.call = true
	for {
		p.gap(false)
		if p.peek() == ')' {
			p.i++
			return m
		}
		// Commas part the arguments here.
		m.args = append(m.args, p.binary(additive, p.unary))
		p.gap(false)
		if p.peek() != ')' {
			p.expect(',')
		}
	}
}

func (p *parser) primary() expression {
	switch c := p.peek(); {
	case p.i >= len(p.s):
		panic(errIncomplete)
	case c == '\'':
		return &literal{p.single()}
	case c == '"':
		return p.double()
	case digit(c):
		from := p.i
		for digit(p.peek()) {
			p.i++
		}
		if letter(p.peek()) || p.peek() == '.' && p.i+1 < len(p.s) && digit(p.s[p.i+1]) {
			p.fail("numbers are decimal integers")
		}
		n, err := strconv.ParseInt(p.s[from:p.i], 10, 64)
		if err != nil {
			p.fail("%v", err)
		}
		return &literal{n}
	case p.has("$("):
		p.i += 2
		return &subOf{p.statements(")")}
	case c == '$':
		p.i++
		name := p.word()
		if name == "" || p.peek() == ':' && !p.has("::") {
			p.fail("a variable's name is letters and digits")
		}
		return &variable{strings.ToLower(name)}
	case p.has("@("):
		p.i += 2
		return &arrayOf{p.statements(")")}
	case p.has("@{"):
		p.i += 2
		return p.hashtable()
	case c == '(':
		p.i++
		p.gap(false)
		inner := p.pipe()
		p.gap(false)
		p.expect(')')
		return &paren{inner}
	case c == '{':
		return &script{p.braces()}
	case c == '[':
		name := p.typeName()
		if !p.has("::") {
			p.fail("a type where a value should be")
		}
		return &typeName{name}
	default:
		p.fail("%q where a value should be", c)
	}
	return nil
}

func (p *parser) single() string {
	p.expect('\'')
	var b strings.Builder
	for {
		if p.i >= len(p.s) {
			panic(errIncomplete)
		}
		c := p.s[p.i]
		p.i++
		if c != '\'' {
			b.WriteByte(c)
			continue
		}
		if p.peek() != '\'' {
			return b.String()
		}
		b.WriteByte('\'')
		p.i++
	}
}

func (p *parser) double() expression {
	p.expect('"')
	e := &expandable{}
	var b strings.Builder
	flush := func() {
		if b.Len() > 0 {
			e.parts = append(e.parts, &literal{b.String()})
			b.Reset()
		}
	}
	for {
		if p.i >= len(p.s) {
			panic(errIncomplete)
		}
		switch c := p.s[p.i]; {
		case c == '"':
			p.i++
			flush()
			return e
		case c == '`':
			p.fail("a backtick in a string")
		case p.has("$("):
			flush()
			p.i += 2
			e.parts = append(e.parts, &subOf{p.statements(")")})
		case c == '$' && p.i+1 < len(p.s) && letter(p.s[p.i+1]):
			flush()
			p.i++
			e.parts = append(e.parts, &variable{strings.ToLower(p.word())})
		default:
			b.WriteByte(c)
			p.i++
		}
	}
}

func (p *parser) hashtable() expression {
	h := &hashtable{}
	for {
		p.gap(true)
		if p.peek() == '}' {
			p.i++
			return h
		}
		if p.i >= len(p.s) {
			panic(errIncomplete)
		}
		key := p.word()
		if key == "" {
			p.fail("%q where a key should be", p.peek())
		}
		p.blanks()
		p.expect('=')
		p.gap(false)
		h.keys = append(h.keys, key)
		h.values = append(h.values, p.statement())
		p.blanks()
		if c := p.peek(); c != '\n' && c != ';' && c != '}' && p.i < len(p.s) {
			p.fail("%q behind a value", c)
		}
	}
}

package standin

import (
	"strconv"
	"strings"
)

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
func (p *parser) argumentValue() expression { return p.list(p.oneArgument) }

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

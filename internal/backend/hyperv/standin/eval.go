package standin

import (
	"io"
	"os"
	"strings"
)

// evaluator runs scripts. One belongs to one process of the stand-in.
type evaluator struct {
	world  *World // read anew for each statement that comes in
	dir    string
	out    io.Writer
	errout io.Writer
	global *scope
	parent int // process id
}

type scope struct {
	vars map[string]any
	up   *scope
}

func (s *scope) get(name string) (any, bool) {
	for ; s != nil; s = s.up {
		if v, ok := s.vars[name]; ok {
			return v, true
		}
	}
	return nil, false
}

func newEvaluator(dir string, out, errout io.Writer) *evaluator {
	e := &evaluator{dir: dir, out: out, errout: errout, parent: os.Getppid(), global: &scope{vars: map[string]any{
		"true": true, "false": false, "null": nil,
		"erroractionpreference": "Continue", "progresspreference": "Continue", "warningpreference": "Continue",
	}}}
	return e
}

// run runs statements; what they output goes to out. done: a return was met.
func (e *evaluator) run(body []statement, s *scope, out *[]any) (done bool, err *psError) {
	for _, st := range body {
		if done, err = e.statement(st, s, out); done || err != nil {
			return done, err
		}
	}
	return false, nil
}

func (e *evaluator) statement(st statement, s *scope, out *[]any) (bool, *psError) {
	switch st := st.(type) {
	case *assignment:
		v, err := e.value(st.value, s)
		if err != nil {
			return false, err
		}
		return false, e.assign(st.target, v, s)
	case *ifStatement:
		for i, c := range st.conditions {
			v, err := e.value(c, s)
			if err != nil {
				return false, err
			}
			if truth(v) {
				return e.run(st.blocks[i].body, s, out)
			}
		}
		if st.otherwise != nil {
			return e.run(st.otherwise.body, s, out)
		}
		return false, nil
	case *foreachStatement:
		v, err := e.value(st.in, s)
		if err != nil {
			return false, err
		}
		if v == nil {
			return false, nil // foreach over null runs never
		}
		for _, item := range elements(v) {
			s.vars[st.variable] = item
			if done, err := e.run(st.body.body, s, out); done || err != nil {
				return done, err
			}
		}
		return false, nil
	case *tryStatement:
		done, err := e.run(st.body.body, s, out)
		if err != nil && st.catch != nil {
			old, had := s.vars["_"]
			s.vars["_"] = err.record()
			done, err = e.run(st.catch.body, s, out)
			if had {
				s.vars["_"] = old
			} else {
				delete(s.vars, "_")
			}
		}
		if st.finally != nil {
			fdone, ferr := e.run(st.finally.body, s, out)
			if ferr != nil {
				return false, ferr
			}
			done = done || fdone
		}
		return done, err
	case *throwStatement:
		v, err := e.eval(st.value, s)
		if err != nil {
			return false, err
		}
		if o, ok := v.(*object); ok {
			if old, ok := o.ref.(*psError); ok {
				return false, old
			}
		}
		return false, runtimeError(text(v), "OperationStopped", "%s", text(v))
	case *returnStatement:
		if st.value != nil {
			if _, err := e.statement(st.value, s, out); err != nil {
				return false, err
			}
		}
		return true, nil
	case *pipeline:
		return false, e.pipeline(st, s, out)
	}
	return false, unknownHere("a statement %T", st)
}

// value is what a statement outputs, as an assignment takes it.
func (e *evaluator) value(st statement, s *scope) (any, *psError) {
	if p, ok := st.(*pipeline); ok && len(p.elements) == 1 {
		if _, isCommand := p.elements[0].(*command); !isCommand {
			return e.eval(p.elements[0], s) // keeps an array an array, and null null
		}
	}
	var out []any
	if _, err := e.statement(st, s, &out); err != nil {
		return nil, err
	}
	return collect(out), nil
}

func (e *evaluator) assign(target expression, v any, s *scope) *psError {
	switch t := target.(type) {
	case *variable:
		if t.name == "true" || t.name == "false" {
			return runtimeError("VariableNotWritable", "WriteError", "$%s is a constant", t.name)
		}
		if t.name != "null" {
			s.vars[t.name] = v
		}
		return nil
	case *member:
		of, err := e.eval(t.of, s)
		if err != nil {
			return err
		}
		if h, ok := of.(*hash); ok && !t.static {
			h.set(t.name, v)
			return nil
		}
		return runtimeError("PropertyAssignmentException", "InvalidOperation", "The property '%s' cannot be found on this object.", t.name)
	}
	return unknownHere("an assignment to a %T", target)
}

func (e *evaluator) pipeline(p *pipeline, s *scope, out *[]any) *psError {
	var flow []any
	for i, el := range p.elements {
		var next []any
		var err *psError
		if c, ok := el.(*command); ok {
			var input []any
			if i > 0 {
				input = flow
			}
			err = e.command(c, s, input, i > 0, &next)
		} else {
			var v any
			if v, err = e.eval(el, s); err == nil {
				next = elements(v)
			}
		}
		if err != nil {
			return err
		}
		flow = next
	}
	*out = append(*out, flow...)
	return nil
}

// invoke calls a script block with arguments, in a scope of its own.
func (e *evaluator) invoke(b *block, args []any, s *scope, out *[]any) *psError {
	inner := &scope{vars: map[string]any{}, up: s}
	for i, name := range b.params {
		if i < len(args) {
			inner.vars[name] = args[i]
		} else {
			inner.vars[name] = nil
		}
	}
	_, err := e.run(b.body, inner, out)
	return err
}

// each calls a script block with $_ set, in the scope of its caller.
func (e *evaluator) each(b *block, item any, s *scope, out *[]any) *psError {
	old, had := s.vars["_"]
	s.vars["_"] = item
	_, err := e.run(b.body, s, out)
	if had {
		s.vars["_"] = old
	} else {
		delete(s.vars, "_")
	}
	return err
}

func (e *evaluator) command(c *command, s *scope, input []any, piped bool, out *[]any) *psError {
	if c.call == nil {
		return e.cmdlet(c, s, input, piped, out)
	}
	v, err := e.eval(c.call, s)
	if err != nil {
		return err
	}
	b, ok := v.(*block)
	if !ok {
		return runtimeError("CommandNotFoundException", "ObjectNotFound", "The term '%s' is not recognized", text(v))
	}
	var args []any
	for _, a := range c.args {
		if a.parameter != "" {
			return unknownHere("a named argument of a script block")
		}
		v, err := e.eval(a.value, s)
		if err != nil {
			return err
		}
		args = append(args, v)
	}
	return e.invoke(b, args, s, out)
}

func (e *evaluator) lookup(name string, s *scope) (any, *psError) {
	if strings.EqualFold(name, "executioncontext") {
		mode := e.world.Faults.LanguageMode
		if mode == "" {
			mode = "FullLanguage"
		}
		return newObject("EngineIntrinsics", "SessionState", newObject("SessionState", "LanguageMode", enum{"PSLanguageMode", mode, 0})), nil
	}
	if strings.EqualFold(name, "psversiontable") {
		h := newHash()
		h.set("PSVersion", "5.1.19041.4648")
		h.set("PSEdition", "Desktop")
		return h, nil
	}
	v, ok := s.get(name)
	if !ok {
		return nil, unknownHere("the variable $%s was never set", name)
	}
	return v, nil
}

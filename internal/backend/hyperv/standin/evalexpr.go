package standin

import (
	"slices"
	"strings"
)

func (e *evaluator) eval(x expression, s *scope) (any, *psError) {
	switch x := x.(type) {
	case *literal:
		return x.value, nil
	case *variable:
		return e.lookup(x.name, s)
	case *expandable:
		var b strings.Builder
		for _, part := range x.parts {
			v, err := e.eval(part, s)
			if err != nil {
				return nil, err
			}
			b.WriteString(text(v))
		}
		return b.String(), nil
	case *hashtable:
		h := newHash()
		for i, k := range x.keys {
			v, err := e.value(x.values[i], s)
			if err != nil {
				return nil, err
			}
			if _, dup := h.values[strings.ToLower(k)]; dup {
				return nil, runtimeError("DuplicateKeyInHashLiteral", "ParserError", "Duplicate key '%s'", k)
			}
			h.set(k, v)
		}
		return h, nil
	case *arrayOf:
		out := []any{}
		if _, err := e.run(x.body, s, &out); err != nil {
			return nil, err
		}
		return out, nil
	case *subOf:
		var out []any
		if _, err := e.run(x.body, s, &out); err != nil {
			return nil, err
		}
		return collect(out), nil
	case *paren:
		return e.value(x.inner, s)
	case *script:
		return x.block, nil
	case *comma:
		return e.all(x.items, s)
	case *cast:
		v, err := e.eval(x.value, s)
		if err != nil {
			return nil, err
		}
		return convert(x.to, v)
	case *member:
		return e.member(x, s)
	case *index:
		of, err := e.eval(x.of, s)
		if err != nil {
			return nil, err
		}
		at, err := e.eval(x.at, s)
		if err != nil {
			return nil, err
		}
		return e.index(of, at)
	case *unary:
		v, err := e.eval(x.of, s)
		return !truth(v), err
	case *binary:
		return e.binary(x, s)
	}
	return nil, unknownHere("an expression %T", x)
}

func (e *evaluator) all(items []expression, s *scope) ([]any, *psError) {
	out := make([]any, len(items))
	for i, it := range items {
		v, err := e.eval(it, s)
		if err != nil {
			return nil, err
		}
		out[i] = v
	}
	return out, nil
}

func (e *evaluator) index(of, at any) (any, *psError) {
	switch of := of.(type) {
	case []any:
		n, err := number(at)
		if err != nil {
			return nil, unknownHere("an array's index %v", at)
		}
		if n < 0 {
			n += int64(len(of))
		}
		if n < 0 || n >= int64(len(of)) {
			return nil, nil // outside of an array is null
		}
		return of[n], nil
	case *hash:
		return of.values[strings.ToLower(text(at))], nil
	}
	if isNull(of) {
		return nil, runtimeError("NullArray", "InvalidOperation", "Cannot index into a null array.")
	}
	return nil, unknownHere("an index into a %T", of)
}

func convert(to string, v any) (any, *psError) {
	switch to {
	case "string":
		return text(v), nil
	case "bool":
		return truth(v), nil
	case "long", "int":
		n, err := number(v)
		if err != nil || to == "int" && int64(int32(n)) != n {
			return nil, runtimeError("InvalidCastFromStringToInteger", "InvalidArgument", "Cannot convert value %q to type %q.", text(v), to)
		}
		return n, nil
	}
	return nil, unknownHere("the cast [%s]", to)
}

func (e *evaluator) member(m *member, s *scope) (any, *psError) {
	args, err := e.all(m.args, s)
	if err != nil {
		return nil, err
	}
	if m.static {
		return e.static(m.of.(*typeName).name, m.name, m.call, args)
	}
	of, err := e.eval(m.of, s)
	if err != nil {
		return nil, err
	}
	if m.call {
		return e.method(of, m.name, args)
	}
	return e.property(of, m.name)
}

func (e *evaluator) property(of any, name string) (any, *psError) {
	key := strings.ToLower(name)
	switch of := of.(type) {
	case nil, noValue:
		if key == "count" {
			return int64(0), nil
		}
		return nil, nil
	case *hash:
		if v, ok := of.values[key]; ok {
			return v, nil
		}
		if key == "count" {
			return int64(len(of.keys)), nil
		}
		return nil, nil
	case *object:
		if v, ok := of.props.values[key]; ok {
			if lazy, ok := v.(func() (any, *psError)); ok {
				return lazy()
			}
			return v, nil
		}
		if of.open {
			return nil, nil
		}
		return nil, unknownHere("a %s has no property %s", of.class, name)
	case []any:
		if key == "count" || key == "length" {
			return int64(len(of)), nil
		}
		var out []any
		for _, item := range of {
			v, err := e.property(item, name)
			if err != nil {
				return nil, err
			}
			out = append(out, elements(v)...)
		}
		return collect(out), nil
	case string:
		if key == "length" {
			return int64(len(of)), nil
		}
	}
	if key == "count" {
		return int64(1), nil
	}
	return nil, unknownHere("the property %s of a %T", name, of)
}

func (e *evaluator) binary(x *binary, s *scope) (any, *psError) {
	left, err := e.eval(x.left, s)
	if err != nil {
		return nil, err
	}
	switch x.op {
	case "-and":
		if !truth(left) {
			return false, nil
		}
	case "-or":
		if truth(left) {
			return true, nil
		}
	}
	right, err := e.eval(x.right, s)
	if err != nil {
		return nil, err
	}
	in := func(list, item any) bool {
		return slices.ContainsFunc(elements(list), func(v any) bool { return equal(v, item) })
	}
	switch x.op {
	case "-and", "-or":
		return truth(right), nil
	case "-contains":
		return in(left, right), nil
	case "-notcontains":
		return !in(left, right), nil
	case "-in":
		return in(right, left), nil
	case "-notin":
		return !in(right, left), nil
	}
	if _, array := left.([]any); array && x.op != "+" {
		return nil, unknownHere("%s with an array on the left", x.op)
	}
	switch x.op {
	case "-eq":
		return equal(left, right), nil
	case "-ne":
		return !equal(left, right), nil
	case "-like":
		return like(text(left), text(right)), nil
	case "-notlike":
		return !like(text(left), text(right)), nil
	case "+":
		switch l := left.(type) {
		case []any:
			return append(slices.Clone(l), elements(right)...), nil
		case string:
			return l + text(right), nil
		}
	}
	l, lerr := number(left)
	r, rerr := number(right)
	if lerr != nil || rerr != nil {
		return nil, unknownHere("%v %s %v", left, x.op, right)
	}
	switch x.op {
	case "+":
		return l + r, nil
	case "-":
		return l - r, nil
	case "-gt":
		return l > r, nil
	case "-ge":
		return l >= r, nil
	case "-lt":
		return l < r, nil
	}
	return l <= r, nil
}

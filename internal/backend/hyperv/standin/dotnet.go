package standin

import (
	"encoding/base64"
	"io"
	"strings"
	"time"
	"unicode/utf8"
)

// The few .NET types that scripts may use, by lower-case name.

var casts = map[string]bool{"string": true, "long": true, "int": true, "bool": true}

var statics = map[string]bool{
	"text.encoding": true, "convert": true, "scriptblock": true, "console": true,
	"security.principal.windowsidentity": true, "security.principal.windowsprincipal": true,
	"security.principal.securityidentifier": true, "security.principal.windowsbuiltinrole": true,
}

func knownType(name string) bool {
	n := strings.ToLower(name)
	return casts[n] || statics[n]
}

type utf8Encoding struct{}
type textWriter struct{ w io.Writer }
type identity struct{}
type principal struct{}
type sid string

// static reads [type]::name, or calls it.
func (e *evaluator) static(kind, name string, call bool, args []any) (any, *psError) {
	if call && e.world.Faults.LanguageMode == "ConstrainedLanguage" {
		return nil, runtimeError("MethodInvocationNotSupportedInConstrainedLanguage", "InvalidOperation",
			"Cannot invoke method. Method invocation is supported only on core types in this language mode.")
	}
	one := func() string {
		if len(args) == 1 {
			return text(args[0])
		}
		return ""
	}
	switch key := kind + "::" + strings.ToLower(name); {
	case key == "text.encoding::utf8" && !call:
		return utf8Encoding{}, nil
	case key == "console::out" && !call:
		return textWriter{e.out}, nil
	case key == "convert::frombase64string" && call && len(args) == 1:
		b, err := base64.StdEncoding.DecodeString(one())
		if err != nil {
			return nil, runtimeError("FormatException", "NotSpecified", "The input is not a valid Base-64 string")
		}
		return b, nil
	case key == "convert::tobase64string" && call && len(args) == 1:
		b, ok := args[0].([]byte)
		if !ok {
			return nil, runtimeError("MethodArgumentConversionInvalidCastArgument", "NotSpecified", "no byte array")
		}
		return base64.StdEncoding.EncodeToString(b), nil
	case key == "scriptblock::create" && call && len(args) == 1:
		b, err := parse(one())
		if err != nil {
			return nil, runtimeError("ParseException", "NotSpecified", "%v", err)
		}
		return b, nil
	case key == "security.principal.windowsidentity::getcurrent" && call && len(args) == 0:
		return identity{}, nil
	case key == "security.principal.windowsprincipal::new" && call && len(args) == 1:
		if _, ok := args[0].(identity); ok {
			return principal{}, nil
		}
	case key == "security.principal.securityidentifier::new" && call && len(args) == 1:
		return sid(one()), nil
	case key == "security.principal.windowsbuiltinrole::administrator" && !call:
		return enum{"WindowsBuiltInRole", "Administrator", 544}, nil
	}
	return nil, unknownHere("[%s]::%s with %d arguments", kind, name, len(args))
}

// method calls a method of a value.
func (e *evaluator) method(of any, name string, args []any) (any, *psError) {
	if isNull(of) {
		return nil, runtimeError("InvokeMethodOnNull", "InvalidOperation", "You cannot call a method on a null-valued expression.")
	}
	n := strings.ToLower(name)
	switch v := of.(type) {
	case string:
		if len(args) == 1 {
			switch a := text(args[0]); n {
			case "contains":
				return strings.Contains(v, a), nil
			case "startswith":
				return strings.HasPrefix(v, a), nil
			}
		}
		if len(args) == 0 && n == "trim" {
			return strings.TrimSpace(v), nil
		}
	case utf8Encoding:
		if b, ok := oneArg[[]byte](args); ok && n == "getstring" {
			if !utf8.Valid(b) {
				return strings.ToValidUTF8(string(b), "\ufffd"), nil
			}
			return string(b), nil
		}
		if s, ok := oneArg[string](args); ok && n == "getbytes" {
			return []byte(s), nil
		}
	case textWriter:
		switch {
		case n == "writeline" && len(args) == 1:
			io.WriteString(v.w, text(args[0])+"\r\n")
			return noValue{}, nil
		case n == "flush" && len(args) == 0:
			return noValue{}, nil
		}
	case time.Time:
		switch {
		case n == "touniversaltime" && len(args) == 0:
			return v.UTC(), nil
		case n == "tostring" && len(args) == 1 && text(args[0]) == "o":
			return v.UTC().Format("2006-01-02T15:04:05.0000000Z"), nil
		}
	case principal:
		if n == "isinrole" && len(args) == 1 {
			switch role := args[0].(type) {
			case enum:
				return e.world.Faults.Rights == "" || e.world.Faults.Rights == "administrator", nil
			case sid:
				return role == "S-1-5-32-578" && (e.world.Faults.Rights == "" || e.world.Faults.Rights == "hyper-v"), nil
			}
		}
	}
	return nil, unknownHere("the method %s of a %T with %d arguments", name, of, len(args))
}

func oneArg[T any](args []any) (v T, ok bool) {
	if len(args) == 1 {
		v, ok = args[0].(T)
	}
	return v, ok
}

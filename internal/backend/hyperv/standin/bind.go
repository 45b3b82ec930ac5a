package standin

import (
	"regexp"
	"slices"
	"strings"
	"time"
)

// invocation is one call of a cmdlet with what its parameters are bound to.
type invocation struct {
	e      *evaluator
	s      *scope
	cmdlet *cmdletInfo
	set    string
	values map[string]any // by lower-case name
	common map[string]any // ErrorAction and its like
	out    *[]any
}

// class is the class of the cmdlet, as error identifiers name it.
func (c *invocation) class() string {
	verb, noun, _ := strings.Cut(c.cmdlet.name, "-")
	if strings.HasSuffix(noun, "VHD") {
		return "Microsoft.Vhd.PowerShell.Cmdlets." + verb + "Vhd"
	}
	if c.cmdlet.module == "Hyper-V" {
		return "Microsoft.HyperV.PowerShell.Commands." + verb + noun
	}
	return "Microsoft.PowerShell.Commands." + verb + noun + "Command"
}

func (c *invocation) has(name string) bool { _, ok := c.values[strings.ToLower(name)]; return ok }
func (c *invocation) get(name string) any  { return c.values[strings.ToLower(name)] }
func (c *invocation) str(name string) string {
	return text(c.get(name))
}
func (c *invocation) num(name string) int64 {
	n, _ := number(c.get(name))
	return n
}
func (c *invocation) on(name string) bool { return truth(c.get(name)) }

// bound is what the arguments alone give, before the pipeline.
type bound struct {
	values     map[string]any
	positional []any
	common     map[string]any
}

var commonParameters = []string{"ErrorAction", "WarningAction", "InformationAction", "Verbose", "Debug"}

func (e *evaluator) arguments(info *cmdletInfo, c *command, s *scope) (bound, *psError) {
	b := bound{values: map[string]any{}, common: map[string]any{}}
	for i := 0; i < len(c.args); i++ {
		a := c.args[i]
		if a.parameter == "" {
			v, err := e.eval(a.value, s)
			if err != nil {
				return b, err
			}
			b.positional = append(b.positional, v)
			continue
		}
		var p parameter
		var ok bool
		for _, set := range info.sets {
			if p, ok = set.find(a.parameter); ok {
				break
			}
		}
		common := slices.IndexFunc(commonParameters, func(n string) bool { return strings.EqualFold(n, a.parameter) })
		if !ok && common < 0 {
			return b, bindingError(info.name, "NamedParameterNotFound", "A parameter cannot be found that matches parameter name '%s'.", a.parameter)
		}
		var v any = true
		if a.value != nil || !ok || p.kind != "" {
			x := a.value
			if x == nil {
				if i+1 >= len(c.args) || c.args[i+1].parameter != "" {
					return b, bindingError(info.name, "MissingArgument", "Missing an argument for parameter '%s'.", a.parameter)
				}
				i++
				x = c.args[i].value
			}
			var err *psError
			if v, err = e.eval(x, s); err != nil {
				return b, err
			}
		}
		key := strings.ToLower(p.name)
		if !ok {
			b.common[strings.ToLower(commonParameters[common])] = v
			continue
		}
		if _, twice := b.values[key]; twice {
			return b, bindingError(info.name, "ParameterAlreadyBound", "Cannot bind parameter because parameter '%s' is specified more than once.", p.name)
		}
		b.values[key] = v
	}
	return b, nil
}

// choose finds the parameter set for the arguments and one input object.
func choose(info *cmdletInfo, b bound, input any, piped bool) (string, map[string]any, *psError) {
	var missing string
	var failed *psError
	try := func(set parameterSet) (map[string]any, bool) {
		values := map[string]any{}
		for k, v := range b.values {
			p, ok := set.find(k)
			if !ok {
				return nil, false
			}
			cv, err := coerce(info.name, p, v)
			if err != nil {
				failed = err
				return nil, false
			}
			values[k] = cv
		}
		rest := b.positional
		for _, p := range set.parameters {
			if _, named := values[strings.ToLower(p.name)]; len(rest) > 0 && p.positional && !named {
				cv, err := coerce(info.name, p, rest[0])
				if err != nil {
					failed = err
					return nil, false
				}
				values[strings.ToLower(p.name)] = cv
				rest = rest[1:]
			}
		}
		if len(rest) > 0 {
			failed = bindingError(info.name, "PositionalParameterNotFound", "A positional parameter cannot be found that accepts argument '%s'.", text(rest[0]))
			return nil, false
		}
		if piped && !bindInput(info.name, set, values, input) {
			failed = bindingError(info.name, "InputObjectNotBound", "The input object cannot be bound to any parameters for the command.")
			return nil, false
		}
		for _, p := range set.parameters {
			if _, ok := values[strings.ToLower(p.name)]; p.mandatory && !ok {
				missing = p.name
				return nil, false
			}
		}
		return values, true
	}
	fits := 0
	var name string
	var values map[string]any
	for _, set := range info.sets {
		v, ok := try(set)
		if !ok {
			continue
		}
		if fits++; fits == 1 || set.isDefault {
			name, values = set.name, v
		}
	}
	switch {
	case fits > 0:
		return name, values, nil
	case failed != nil:
		return "", nil, failed
	case missing != "":
		// A prompt, but for -NonInteractive.
		return "", nil, bindingError(info.name, "MissingMandatoryParameter", "Cannot process command because of one or more missing mandatory parameters: %s.", missing)
	}
	return "", nil, bindingError(info.name, "AmbiguousParameterSet", "Parameter set cannot be resolved using the specified named parameters.")
}

func bindInput(name string, set parameterSet, values map[string]any, input any) bool {
	for _, p := range set.parameters {
		key := strings.ToLower(p.name)
		if _, ok := values[key]; ok || !p.byValue {
			continue
		}
		if v, err := coerce(name, p, input); err == nil && fitsByValue(p, input) {
			values[key] = v
			return true
		}
	}
	return false
}

// fitsByValue keeps objects from binding to strings by what they are called.
func fitsByValue(p parameter, v any) bool {
	kind := strings.TrimSuffix(p.kind, "[]")
	if _, ok := v.(*object); ok {
		return kind == "Object" || kind == "PSObject" || !simpleKind(kind)
	}
	return true
}

func simpleKind(kind string) bool {
	switch kind {
	case "String", "Int16", "Int32", "Int64", "UInt32", "UInt64", "Boolean", "Guid", "Hashtable", "ScriptBlock", "Version", "DateTime":
		return true
	}
	return enums[kind] != nil
}

var guidPattern = regexp.MustCompile(`^\{?[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\}?$`)

// coerce makes a value of a parameter's type, as the binder does.
func coerce(cmdlet string, p parameter, v any) (any, *psError) {
	refuse := func() *psError {
		return bindingError(cmdlet, "ParameterArgumentTransformationError", "Cannot process argument transformation on parameter '%s'. Cannot convert the value %q.", p.name, text(v))
	}
	if element, ok := strings.CutSuffix(p.kind, "[]"); ok {
		if isNull(v) && p.mandatory {
			return nil, bindingError(cmdlet, "ParameterArgumentValidationErrorNullNotAllowed", "Cannot bind argument to parameter '%s' because it is null.", p.name)
		}
		one := p
		one.kind = element
		out := []any{}
		for _, item := range elements(v) {
			c, err := coerce(cmdlet, one, item)
			if err != nil {
				return nil, err
			}
			out = append(out, c)
		}
		return out, nil
	}
	switch p.kind {
	case "", "Boolean":
		switch b := v.(type) {
		case bool:
			return b, nil
		case int64:
			return b != 0, nil
		}
		return nil, refuse()
	case "Object", "PSObject":
		if isNull(v) {
			return nil, nil
		}
		return v, nil
	}
	if isNull(v) {
		if p.mandatory || p.kind != "String" {
			return nil, bindingError(cmdlet, "ParameterArgumentValidationErrorNullNotAllowed", "Cannot bind argument to parameter '%s' because it is null.", p.name)
		}
		return "", nil
	}
	switch p.kind {
	case "String", "Version":
		s := text(v)
		if s == "" && p.mandatory {
			return nil, bindingError(cmdlet, "ParameterArgumentValidationErrorEmptyStringNotAllowed", "Cannot bind argument to parameter '%s' because it is an empty string.", p.name)
		}
		return s, nil
	case "Int16", "Int32", "Int64", "UInt32", "UInt64":
		n, err := number(v)
		low, high := int64(-1<<63), int64(1<<63-1)
		switch p.kind {
		case "Int16":
			low, high = -1<<15, 1<<15-1
		case "Int32":
			low, high = -1<<31, 1<<31-1
		case "UInt32":
			low, high = 0, 1<<32-1
		case "UInt64":
			low = 0
		}
		if err != nil || n < low || n > high {
			return nil, refuse()
		}
		return n, nil
	case "Guid":
		if s := text(v); guidPattern.MatchString(s) {
			return guid(strings.ToLower(strings.Trim(s, "{}"))), nil
		}
		return nil, refuse()
	case "DateTime":
		if t, ok := v.(time.Time); ok {
			return t, nil
		}
		return nil, refuse()
	case "Hashtable":
		if h, ok := v.(*hash); ok {
			return h, nil
		}
		return nil, refuse()
	case "ScriptBlock":
		if b, ok := v.(*block); ok {
			return b, nil
		}
		return nil, refuse()
	}
	if members := enums[p.kind]; members != nil {
		for _, m := range members {
			if strings.EqualFold(m.name, text(v)) {
				return m, nil
			}
			if n, ok := v.(int64); ok && n == m.number {
				return m, nil
			}
		}
		return nil, refuse()
	}
	if o, ok := v.(*object); ok {
		if slices.Contains(bases(o.class), p.kind) {
			return o, nil
		}
	}
	return nil, refuse()
}

// bases are a class and those it derives from, as parameters name them.
func bases(class string) []string {
	switch class {
	case "VirtualMachine", "VMSnapshot":
		return []string{class, "VirtualMachineBase"}
	case "VMNetworkAdapter":
		return []string{class, "VMNetworkAdapterBase", "VMComponentObject"}
	case "HardDiskDrive", "DvdDrive":
		return []string{class, "VMComponentObject"}
	}
	return []string{class}
}

func enumOf(kind string, pairs ...any) []enum {
	var all []enum
	for i := 0; i+1 < len(pairs); i += 2 {
		all = append(all, enum{kind, pairs[i].(string), int64(pairs[i+1].(int))})
	}
	return all
}

// enums are the enumerations of parameters, from the module's documentation.
var enums = map[string][]enum{
	"BootDevice":           enumOf("BootDevice", "Floppy", 0, "CD", 1, "IDE", 2, "LegacyNetworkAdapter", 3, "NetworkAdapter", 4, "VHD", 5),
	"StartAction":          enumOf("StartAction", "Nothing", 2, "StartIfRunning", 3, "Start", 4),
	"StopAction":           enumOf("StopAction", "TurnOff", 2, "Save", 3, "ShutDown", 4),
	"CheckpointType":       enumOf("CheckpointType", "Disabled", 2, "Production", 3, "ProductionOnly", 4, "Standard", 5),
	"OnOffState":           enumOf("OnOffState", "On", 0, "Off", 1),
	"ControllerType":       enumOf("ControllerType", "IDE", 0, "SCSI", 1, "PMEM", 2),
	"VMSwitchType":         enumOf("VMSwitchType", "Private", 0, "Internal", 1, "External", 2),
	"SnapshotType":         enumOf("SnapshotType", "Standard", 0, "Recovery", 1, "Planned", 2, "Missing", 5, "Replica", 6),
	"State":                enumOf("State", "Unreachable", 0, "Incomplete", 1, "Probe", 2, "Delay", 3, "Stale", 4, "Reachable", 5, "Permanent", 6),
	"AddressFamily":        enumOf("AddressFamily", "IPv4", 2, "IPv6", 23),
	"IPProtocolPreference": enumOf("IPProtocolPreference", "IPv4", 0, "IPv6", 1),
}

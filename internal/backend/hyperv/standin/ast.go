package standin

// The tree of a script. Statements give outputs, expressions a value.

type block struct {
	params []string // of param(...)
	body   []statement
	text   string // as it was written
}

type statement any

type (
	assignment struct {
		target expression // variable, member or index
		value  statement
	}
	ifStatement struct {
		conditions []statement
		blocks     []*block
		otherwise  *block
	}
	foreachStatement struct {
		variable string
		in       statement
		body     *block
	}
	tryStatement    struct{ body, catch, finally *block }
	throwStatement  struct{ value expression }
	returnStatement struct{ value statement } // value may be nil
	pipeline        struct{ elements []any }  // expression or *command
)

type command struct {
	name string     // of a cmdlet, or ""
	call expression // what & calls, if name is ""
	args []argument
}

// argument is a parameter's name, a value, or, with a colon, both.
type argument struct {
	parameter string
	value     expression
}

type expression any

type (
	literal    struct{ value any }
	expandable struct{ parts []expression } // a string in double quotes
	variable   struct{ name string }
	hashtable  struct {
		keys   []string
		values []statement
	}
	arrayOf  struct{ body []statement } // @(...)
	subOf    struct{ body []statement } // $(...)
	paren    struct{ inner statement }
	script   struct{ block *block }
	typeName struct{ name string }
	cast     struct {
		to    string
		value expression
	}
	member struct {
		of     expression
		name   string
		static bool
		call   bool
		args   []expression
	}
	index struct{ of, at expression }
	unary struct {
		op string
		of expression
	}
	binary struct {
		op          string
		left, right expression
	}
	comma struct{ items []expression }
)

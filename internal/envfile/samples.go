package envfile

// Samples are values with every character that passes, at the beginning, in
// the middle and at the end, for tests that hold readers against Check.
func Samples() []string {
	list := []string{"", "a"}
	for r := rune(0x20); r < 0x7f; r++ {
		for _, v := range []string{string(r), string(r) + "a", "a" + string(r) + "b", "a" + string(r), "a" + string(r) + string(r) + "b"} {
			if Check("", v) == nil {
				list = append(list, v)
			}
		}
	}
	return list
}

package image

import (
	"bytes"
	"fmt"
)

// cpioWriter writes the "newc" archive that a Linux kernel unpacks as initrd.
// Times are zero and inode numbers count up: equal input gives equal bytes.
type cpioWriter struct {
	buf bytes.Buffer
	ino int
}

// File types of a mode.
const (
	cpioDir     = 0o040000
	cpioRegular = 0o100000
	cpioChar    = 0o020000
)

// add appends an entry. major and minor matter for devices only.
func (w *cpioWriter) add(name string, mode, major, minor int, content []byte) {
	w.ino++
	links := 1
	if mode&0o170000 == cpioDir {
		links = 2
	}
	fmt.Fprintf(&w.buf, "070701%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X",
		w.ino, mode, 0, 0, links, 0, len(content), 0, 0, major, minor, len(name)+1, 0)
	w.buf.WriteString(name)
	w.buf.WriteByte(0)
	w.pad()
	w.buf.Write(content)
	w.pad()
}

func (w *cpioWriter) dir(name string, perm int) { w.add(name, cpioDir|perm, 0, 0, nil) }
func (w *cpioWriter) file(name string, perm int, body []byte) {
	w.add(name, cpioRegular|perm, 0, 0, body)
}

func (w *cpioWriter) pad() {
	for w.buf.Len()%4 != 0 {
		w.buf.WriteByte(0)
	}
}

// finish writes the trailer and returns the archive.
func (w *cpioWriter) finish() []byte {
	w.ino = -1
	w.add("TRAILER!!!", 0, 0, 0, nil)
	return w.buf.Bytes()
}

// module is a kernel module's file, unpacked.
type module struct {
	name    string // base name, such as virtio_blk.ko
	content []byte
}

// buildInitrd makes the initrd: the init executable, the modules in the order
// in which it loads them, and a console, which the kernel opens for it. It is
// not compressed: unpacking costs an emulated machine more than reading.
func buildInitrd(init []byte, modules []module) []byte {
	var w cpioWriter
	for _, d := range []string{"dev", "proc", "sys", "run", "newroot", "modules"} {
		w.dir(d, 0o755)
	}
	w.add("dev/console", cpioChar|0o600, 5, 1, nil)
	w.add("dev/null", cpioChar|0o666, 1, 3, nil)
	w.file("init", 0o755, init)
	var list bytes.Buffer
	for _, m := range modules {
		w.file("modules/"+m.name, 0o644, m.content)
		list.WriteString(m.name + "\n")
	}
	w.file("modules/list", 0o644, list.Bytes())
	return w.finish()
}

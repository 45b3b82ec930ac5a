package mcpserver

import "net"

// refusing is a listener that closes connections at once which its owner does
// not want to serve.
type refusing struct {
	net.Listener
	why func(net.Conn) string
}

func refuse(ln net.Listener, why func(net.Conn) string) net.Listener {
	if why == nil {
		return ln
	}
	return refusing{ln, why}
}

func (r refusing) Accept() (net.Conn, error) {
	for {
		c, err := r.Listener.Accept()
		if err != nil || r.why(c) == "" {
			return c, err
		}
		c.Close()
	}
}

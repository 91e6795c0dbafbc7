// Command parts is what the container tests need besides the product: a name server whose record can be set, and a way to
// use memory up. It is static, so that it runs in an empty image.
package main

import (
	"fmt"
	"net/http"
	"os"
	"time"

	"github.com/etcd-warden/etcd-warden/ownership/ownertest"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "parts:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	switch {
	case len(args) == 2 && args[0] == "dns":
		return serveRecord(args[1])
	case len(args) == 2 && args[0] == "hog":
		return hog(args[1])
	}
	return fmt.Errorf("usage: parts dns NAME | parts hog FILE")
}

// serveRecord is the authority for one TXT record on port 53. GET /?owner=ID on port 8080 sets it.
func serveRecord(name string) error {
	server, err := ownertest.ListenOn("0.0.0.0:53", name)
	if err != nil {
		return err
	}
	return http.ListenAndServe(":8080", http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		server.SetOwner(r.FormValue("owner"), time.Second)
	}))
}

// hog writes to a file in a memory file system until the memory of the group is gone.
func hog(path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	for page := make([]byte, 1<<20); ; {
		if _, err := f.Write(page); err != nil {
			return err
		}
	}
}

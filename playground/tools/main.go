// Command tools is the program of the image that containers of playground clusters run.
//
//	tools pause            does nothing, as the first process of a pod
//	tools serve [flags]    answers HTTP requests with the name of its pod
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	verb := "serve"
	if len(os.Args) > 1 {
		verb = os.Args[1]
	}
	switch verb {
	case "pause":
		pause(ctx)
	case "serve":
		flags := flag.NewFlagSet("serve", flag.ExitOnError)
		address := flags.String("address", ":80", "address to serve at")
		drain := flags.Duration("drain", 3*time.Second, "how long to accept requests after SIGTERM: clients learn later that it leaves")
		_ = flags.Parse(os.Args[min(2, len(os.Args)):])
		if err := serve(ctx, *address, *drain); err != nil {
			log.Fatal(err)
		}
	default:
		log.Fatalf("%q: use pause or serve", verb)
	}
}

// pause waits, and collects processes whose parents ended.
func pause(ctx context.Context) {
	children := make(chan os.Signal, 1)
	signal.Notify(children, syscall.SIGCHLD)
	for {
		select {
		case <-ctx.Done():
			return
		case <-children:
			for {
				if pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); pid <= 0 || err != nil {
					break
				}
			}
		}
	}
}

// serve answers requests until ctx ends, and those of the time drain after it. Then it finishes those under way.
func serve(ctx context.Context, address string, drain time.Duration) error {
	name, err := os.Hostname()
	if err != nil {
		return err
	}
	http.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintln(w, name)
	})
	log.Printf("%s serves at %s", name, address)
	server := &http.Server{Addr: address, ReadHeaderTimeout: time.Minute}
	ended := make(chan error, 1)
	go func() { ended <- server.ListenAndServe() }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	log.Printf("%s ends in %s", name, drain)
	time.Sleep(drain)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := server.Shutdown(ctx); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return nil
}

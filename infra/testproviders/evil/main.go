// Program terraform-provider-evil violates the contract of providers. It behaves correctly unless
// configured otherwise: by the arguments of a resource, by the provider's configuration, or by its
// settings (see package settings), in this order.
//
//	behaviour (EVIL_BEHAVIOUR)  the behaviour; see behaviours
//	call (EVIL_CALL)            the affected call: schema, configure, validate, upgrade, read, plan, apply,
//	                            create, update, delete, import; apply stands for the three before import
//	size (EVIL_SIZE)            MiB that it writes or answers; default 1. Of attack: its targets, as JSON
//	EVIL_START                  the behaviour before it serves: hang, die, flood, garbage, endless, slow
//	EVIL_DELAY                  the duration of slow; default 3s
package main

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/hashicorp/terraform-plugin-go/tfprotov6"
	"github.com/hashicorp/terraform-plugin-go/tfprotov6/tf6server"

	"github.com/atoll-dev/atoll/infra/testproviders/settings"
)

func main() {
	if err := begin(settings.Get("EVIL_START")); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	server := New()
	if err := tf6server.Serve("providers.test/atoll/evil", func() tfprotov6.ProviderServer { return server }); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// begin misbehaves before the handshake line that announces the provider's address.
func begin(how string) error {
	switch how {
	case "":
	case "hang":
		for {
			time.Sleep(time.Hour)
		}
	case "die":
		return fmt.Errorf("it dies before it serves")
	case "flood":
		return flood(settings.Get("EVIL_SIZE"))
	case "garbage":
		fmt.Println("this is no handshake")
	case "endless":
		line := bytes.Repeat([]byte("1|6|"), 1<<18)
		for {
			if _, err := os.Stdout.Write(line); err != nil {
				return err
			}
		}
	case "slow":
		delay, err := time.ParseDuration(settings.Get("EVIL_DELAY"))
		if err != nil {
			delay = 3 * time.Second
		}
		time.Sleep(delay)
	default:
		return fmt.Errorf("EVIL_START %q is none of hang, die, flood, garbage, endless, slow", how)
	}
	return nil
}

// flood writes a number of MiB to stderr, like a provider that logs too much.
func flood(size string) error {
	lines := []byte(strings.Repeat(strings.Repeat("flood ", 20)+"\n", 1<<20/121))
	for range mebibytes(size) {
		if _, err := os.Stderr.Write(lines); err != nil {
			return err
		}
	}
	return nil
}

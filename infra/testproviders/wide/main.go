// Program terraform-provider-wide has a large number of generated resource types, which are the
// same each time. It stores nothing: the state of a resource is its only record. If it is
// configured with a directory, it logs its calls there.
//
// WIDE_TYPES is the number of types; default 1500 (see package settings).
package main

import (
	"fmt"
	"os"
	"strconv"

	"github.com/hashicorp/terraform-plugin-go/tfprotov6"
	"github.com/hashicorp/terraform-plugin-go/tfprotov6/tf6server"

	"github.com/atoll-dev/atoll/infra/testproviders/settings"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	types := 1500
	if text := settings.Get("WIDE_TYPES"); text != "" {
		var err error
		if types, err = strconv.Atoi(text); err != nil || types < 1 {
			return fmt.Errorf("WIDE_TYPES %q is not a positive number", text)
		}
	}
	server := New(types)
	return tf6server.Serve("providers.test/atoll/wide", func() tfprotov6.ProviderServer { return server })
}

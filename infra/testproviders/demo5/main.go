// Program terraform-provider-demo5 is a provider on terraform-plugin-sdk/v2 (protocol 5), whose types are
// lenient: what it plans and what comes of it differ in what does not matter, null and ""
// above all. It makes its things in the same world as demo.
package main

import (
	"github.com/hashicorp/terraform-plugin-sdk/v2/plugin"
)

func main() {
	plugin.Serve(&plugin.ServeOpts{ProviderFunc: New, ProviderAddr: "providers.test/atoll/demo5"})
}

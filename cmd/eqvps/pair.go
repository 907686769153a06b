package main

import (
	"os"
	"path"
	"strings"

	"github.com/eqvps/eqvps"
)

// parseEnv reads variables given as NAME=VALUE, or as NAME to take the value
// from this program's own environment.
func parseEnv(pairs []string) (map[string]string, error) {
	if len(pairs) == 0 {
		return nil, nil
	}
	env := map[string]string{}
	for _, p := range pairs {
		name, value, given := strings.Cut(p, "=")
		if !given {
			var ok bool
			if value, ok = os.LookupEnv(name); !ok {
				return nil, usageErrorf("--env %s takes the value from the environment, where %s is not set; give it as --env %s=VALUE", name, name, name)
			}
		}
		env[name] = value
	}
	if err := eqvps.ValidateEnv(env); err != nil {
		return nil, usageFrom(err)
	}
	return env, nil
}

// transfer is one file to copy between this machine and a sandbox.
type transfer struct{ local, remote string }

// parseUpload reads LOCAL:REMOTE. REMOTE is absolute, so LOCAL may hold colons.
func parseUpload(s string) (transfer, error) {
	i := strings.LastIndex(s, ":/")
	if i <= 0 {
		return transfer{}, usageErrorf("--upload %q is not LOCAL:REMOTE with an absolute path in the sandbox, such as data.csv:/root/data.csv", s)
	}
	return checked(transfer{local: s[:i], remote: s[i+1:]})
}

// parseDownload reads REMOTE:LOCAL. The last colon divides them.
func parseDownload(s string) (transfer, error) {
	i := strings.LastIndexByte(s, ':')
	if i <= 0 || i == len(s)-1 || !path.IsAbs(s) {
		return transfer{}, usageErrorf("--download %q is not REMOTE:LOCAL with an absolute path in the sandbox, such as /root/out.csv:out.csv", s)
	}
	return checked(transfer{remote: s[:i], local: s[i+1:]})
}

func checked(t transfer) (transfer, error) {
	if err := eqvps.ValidatePath(t.remote); err != nil {
		return t, usageFrom(err)
	}
	return t, nil
}

// parseAll applies parse to every element.
func parseAll(in []string, parse func(string) (transfer, error)) ([]transfer, error) {
	var out []transfer
	for _, s := range in {
		t, err := parse(s)
		if err != nil {
			return nil, err
		}
		out = append(out, t)
	}
	return out, nil
}

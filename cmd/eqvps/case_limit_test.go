package main

import (
	"fmt"
	"net/http"
	"sync"
	"testing"

	"github.com/eqvps/eqvps/wire"
)

// Kind of fault: a limit of requests hits the call that ends a sandbox, which
// then runs on and costs.
func TestDeleteIsNeverLimited(t *testing.T) {
	s, c := startServer(t)
	sb, err := c.Create(t.Context(), wire.CreateSandbox{})
	if err != nil {
		t.Fatal(err)
	}
	call := func(secret, id string) int {
		req, err := http.NewRequestWithContext(t.Context(), "DELETE", "http://"+s.Addr()+wire.Prefix+"/sandboxes/"+id, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+secret)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Error(err)
			return 0
		}
		resp.Body.Close()
		return resp.StatusCode
	}
	// This address has used up what it may get wrong.
	for i := 0; call("not-a-token", sb.ID) != http.StatusTooManyRequests; i++ {
		if i == 100 {
			t.Fatal("tokens that are none are not limited")
		}
	}
	secret := adminSecret(t)
	work := make(chan int, 300)
	for i := range cap(work) {
		work <- i
	}
	close(work)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for i := range work {
				if got := call(secret, fmt.Sprintf("sb_%020x", i)); got != http.StatusNotFound {
					t.Errorf("deletion %d: status %d", i, got)
				}
			}
		})
	}
	wg.Wait()
	for range 2 {
		if got := call(secret, sb.ID); got != http.StatusOK {
			t.Errorf("deletion of a sandbox: status %d", got)
		}
	}
}

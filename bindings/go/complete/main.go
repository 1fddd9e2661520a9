// complete continues a text: complete MODEL TEXT, where `satchel build` made the model file.
package main

import (
	"fmt"
	"log"
	"os"
	"satchel"
)

func main() {
	model, err := satchel.Open(os.Args[1], satchel.ModelOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer model.Close()
	reply, err := model.Generate(os.Args[2], satchel.Options{MaxTokens: 64, Seed: -1})
	for err == nil && reply.Next() {
		fmt.Print(reply.Text())
	}
}

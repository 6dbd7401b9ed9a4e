"""Small, valid parts that tests share: plans, images and stores, and fakes of the programs that ctrain calls."""
